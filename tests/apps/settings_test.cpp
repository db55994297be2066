// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <apps/serving.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/task/asio.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

/// A variable of the environment, for as long as this lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

bool has_line(const std::string& text, const std::string& line) { return ("\n" + text).find("\n" + line + "\n") != std::string::npos; }

}  // namespace

TEST_CASE("a flag counts before the environment, which counts before the file, which counts before the default") {
  const ScratchFolder folder;
  const std::string file = (folder / "settings.toml").string();
  std::ofstream(file) << "model = \"of-the-file.mr\"\nport = 1\nmax-sessions = 11\nmax-chunks = 12\nlog-json = true\n"
                         "allow-origin = [\"https://a.example\", \"https://b.example\"]\n";
  const Variable port("MILLRACE_SERVE_PORT", "2"), sessions("MILLRACE_SERVE_MAX_SESSIONS", "22");
  const Ended printed = millrace_command({"serve", "--port", "3", "--settings", file, "--print-config"});
  CHECK(printed.err == "");
  CHECK(printed.code == 0);
  CHECK(has_line(printed.out, "port=3"));
  CHECK(has_line(printed.out, "max-sessions=22"));
  CHECK(has_line(printed.out, "max-chunks=12"));
  CHECK(has_line(printed.out, "max-control=65536"));
  CHECK(has_line(printed.out, "log-json=true"));
  CHECK(has_line(printed.out, "allow-origin=[\"https://a.example\", \"https://b.example\"]"));
  CHECK(printed.out.find("of-the-file.mr") != std::string::npos);
  CHECK(printed.out.find("print-config") == std::string::npos);

  // The printed text is a file of the same settings.
  std::ofstream(file) << printed.out;
  const Ended again = millrace_command({"serve", "--port", "3", "--settings", file, "--print-config"});
  CHECK(again.err == "");
  std::ofstream(file) << again.out;
  CHECK(has_line(again.out, "max-chunks=12"));
  CHECK(has_line(again.out, "allow-origin=[\"https://a.example\", \"https://b.example\"]"));
  CHECK(millrace_command({"serve", "--port", "3", "--settings", file, "--print-config"}).out == again.out);
}

TEST_CASE("a server runs by its file and environment alone") {
  const Serving model;
  const std::string file = model.path("settings.toml");
  std::ofstream(file) << "model = \"" << model.model() << "\"\n";
  const Variable port("MILLRACE_SERVE_PORT", "0");
  Process server({"serve", "--settings", file});
  CHECK(server.first_line().starts_with("millrace: serving " + model.model() + " on 127.0.0.1:"));
  server.signal(SIGTERM);
  CHECK(server.wait() == 0);
}

TEST_CASE("settings that are no flags, do not fit, or are missing are bad usage, by name") {
  const ScratchFolder folder;
  const std::string file = (folder / "settings.toml").string();
  const std::vector<std::string> start{"serve", "a.mr", "--port", "0", "--settings", file};
  check_refused(start, 2, {"settings.toml"});
  std::ofstream(file) << "no-such-flag = 1\n";
  check_refused(start, 2, {"settings.toml", "no-such-flag"});
  std::ofstream(file) << "max-sessions = 0\n";
  check_refused(start, 2, {"--max-sessions"});
  std::ofstream(file) << "[serve]\nmax-sessions = 1\n";
  check_refused(start, 2, {"settings.toml", "serve"});
  check_refused({"serve", "--port", "0"}, 2, {"MODEL"});
  check_refused({"serve", "a.mr"}, 2, {"--port"});
  const Variable wrong("MILLRACE_SERVE_MAX_SESSIONS", "many");
  check_refused({"serve", "a.mr", "--port", "0"}, 2, {"--max-sessions"});
}

TEST_CASE("an empty value is an error that names its variable, key or flag, and turns nothing on") {
  const ScratchFolder folder;
  const std::string file = (folder / "settings.toml").string();
  const std::vector<std::string> start{"serve", "a.mr", "--port", "0"};
  for (const char* name : {"MILLRACE_SERVE_INSECURE", "MILLRACE_SERVE_LOG_JSON", "MILLRACE_SERVE_PORT", "MILLRACE_SERVE_TOKEN_FILE",
                           "MILLRACE_SERVE_MODEL", "MILLRACE_SERVE_ALLOW_ORIGIN", "MILLRACE_SERVE_CAPACITY"}) {
    const Variable empty(name, "");
    check_refused(start, 2, {name, "expected a value, found none"});
  }
  for (const char* key : {"insecure", "token-file", "admin"}) {
    std::ofstream(file) << key << " = \"\"\n";
    check_refused({"serve", "a.mr", "--port", "0", "--settings", file}, 2, {key, "expected a value, found none"});
  }
  check_refused({"serve", "a.mr", "--port", ""}, 2, {"--port", "expected a value, found none"});
  check_refused({"serve", "a.mr", "--port", "0", "--token-file", ""}, 2, {"--token-file", "expected a value, found none"});
  check_refused({"serve", "", "--port", "0"}, 2, {"MODEL", "expected a value, found none"});
  check_refused({"stream", "tcp://127.0.0.1:1", "x.npy", "--token-file", ""}, 2, {"--token-file", "expected a value, found none"});
  {
    const Variable no("MILLRACE_SERVE_INSECURE", "false"), yes("MILLRACE_SERVE_QUIET", "true");
    const Ended printed = millrace_command({"serve", "a.mr", "--port", "0", "--print-config"});
    CHECK(has_line(printed.out, "insecure=false"));
    CHECK(has_line(printed.out, "quiet=true"));
  }
}

TEST_CASE("numbers with a zero before them, variables of flags that stand on the command line alone, and tables without keys are errors") {
  const ScratchFolder folder;
  const std::string file = (folder / "settings.toml").string();
  check_refused({"serve", "a.mr", "--port", "010"}, 2, {"--port", "expected a decimal number, found '010'"});
  check_refused({"serve", "a.mr", "--port", "0x10"}, 2, {"--port", "expected a decimal number, found '0x10'"});
  {
    const Variable octal("MILLRACE_SERVE_MAX_SESSIONS", "010");
    check_refused({"serve", "a.mr", "--port", "0"}, 2, {"MILLRACE_SERVE_MAX_SESSIONS", "expected a decimal number, found '010'"});
  }
  for (const auto& [name, flag] : {std::pair{"MILLRACE_SERVE_ROUTE", "--route"}, {"MILLRACE_SERVE_SETTINGS", "--settings"}}) {
    const Variable set(name, "a=b.mr");
    check_refused({"serve", "a.mr", "--port", "0"}, 2, {name, flag, "on the command line"});
  }
  std::ofstream(file) << "[route.a]\n";
  check_refused({"serve", "a.mr", "--port", "0", "--settings", file, "--print-config"}, 2,
                {"[route.a]: expected model = FILE, found none"});
  std::ofstream(file) << "[other]\n";
  check_refused({"serve", "a.mr", "--port", "0", "--settings", file}, 2, {"settings.toml", "[other]"});
  check_refused({"serve", "a.mr", "--port", "0", "--memory-limit", "0"}, 2,
                {"--memory-limit", "expected a number of bytes from 1, found '0'"});
  const std::string absent = (folder / "absent" / "stats.json").string();
  check_refused({"serve", "a.mr", "--port", "0", "--stats-json", absent}, 2, {"--stats-json", absent});
}

TEST_CASE("a hang-up while a server starts ends nothing") {
  const Serving model;
  // The model waits in a pipe, so that the server is in its start when the signal comes.
  const std::string pipe = model.path("late.mr");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  Process server({"serve", pipe, "--port", "0"});
  const int end = ::open(pipe.c_str(), O_WRONLY);  // until it reads
  server.signal(SIGHUP);
  ::usleep(200000);
  ::close(end);
  CHECK(server.wait() == 1);  // no model, and no signal
  CHECK(server.err().find("late.mr") != std::string::npos);
}

TEST_CASE("--admin opens a port of its own, and --log-json makes lines of JSON") {
  Serving serving({"--admin", "0", "--log-json"});
  for (int tries = 0; tries < 500 && serving.server->out().find("administration") == std::string::npos; ++tries) ::usleep(10000);
  CHECK(serving.server->out().find("\nmillrace: administration on 127.0.0.1:") != std::string::npos);
  CHECK(millrace_command({"stream", "tcp://127.0.0.1:" + serving.port, serving.path("absent.npy")}).code == 1);
  serving.server->signal(SIGTERM);
  CHECK(serving.server->wait() == 0);
  CHECK(serving.server->err().starts_with("{\"time\":\""));
  CHECK(serving.server->err().find("\"event\":\"session_end\",\"number\":1,") != std::string::npos);
  check_refused({"serve", serving.model(), "--port", "0", "--admin", "0.0.0.0:0"}, 1, {"0.0.0.0"});
  check_refused({"serve", serving.model(), "--port", "0", "--admin", "99999"}, 2, {"--admin", "99999"});
}

TEST_CASE("--quiet leaves out the lines of sessions that ended or went, and no others") {
  Serving serving({"--quiet"});
  const std::string url = "tcp://127.0.0.1:" + serving.port;
  write_npy(serving.folder / "x.npy", make_darray(DDim{4, Serving::features}, 0.0f));
  CHECK(millrace_command({"stream", url, serving.path("x.npy")}).code == 0);
  asio::io_context context;
  asio::ip::tcp::socket wrong(context);
  wrong.connect({asio::ip::make_address("127.0.0.1"), static_cast<std::uint16_t>(std::stoi(serving.port))});
  asio::write(wrong, asio::buffer(std::string("\1\0\0\0J{", 6)));
  std::string told;
  boost::system::error_code error;
  asio::read(wrong, asio::dynamic_buffer(told), error);
  serving.server->signal(SIGTERM);
  CHECK(serving.server->wait() == 0);
  const std::string err = serving.server->err();
  CHECK(err.find("bad_message") != err.npos);
  CHECK(err.find('\n') == err.size() - 1);
}
