// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>

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
