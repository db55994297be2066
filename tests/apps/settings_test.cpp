// SPDX-License-Identifier: Apache-2.0
#include <csignal>
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
#include <apps/variable.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/task/asio.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

bool has_line(const std::string& text, const std::string& line) { return ("\n" + text).find("\n" + line + "\n") != std::string::npos; }

}  // namespace

TEST_CASE("a flag counts before the environment, which counts before the default") {
  const Variable port("MILLRACE_SERVE_PORT", "2"), sessions("MILLRACE_SERVE_MAX_SESSIONS", "22");
  const Ended printed = millrace_command({"serve", "a.mr", "--port", "3", "--print-config"});
  CHECK(printed.err == "");
  CHECK(printed.code == 0);
  CHECK(has_line(printed.out, "port=3"));
  CHECK(has_line(printed.out, "max-sessions=22"));
  CHECK(has_line(printed.out, "max-control=65536"));
  CHECK(printed.out.find("print-config") == std::string::npos);
}

TEST_CASE("a server runs by its environment alone") {
  const Serving model;
  const Variable path("MILLRACE_SERVE_MODEL", model.model()), port("MILLRACE_SERVE_PORT", "0");
  Process server({"serve"});
  CHECK(server.first_line().starts_with("millrace: serving " + model.model() + " on 127.0.0.1:"));
  server.signal(SIGTERM);
  CHECK(server.wait() == 0);
}

TEST_CASE("variables that do not fit and settings that are missing are bad usage, by name") {
  check_refused({"serve", "--port", "0"}, 2, {"MODEL"});
  check_refused({"serve", "a.mr"}, 2, {"--port"});
  const Variable wrong("MILLRACE_SERVE_MAX_SESSIONS", "many");
  check_refused({"serve", "a.mr", "--port", "0"}, 2, {"MILLRACE_SERVE_MAX_SESSIONS", "--max-sessions"});
}

TEST_CASE("each long name of a flag is a variable of the environment, and two of one flag are an error") {
  const std::vector<std::string> start{"serve", "a.mr", "--port", "0"}, print{"serve", "a.mr", "--port", "0", "--print-config"};
  const Variable idle("MILLRACE_SERVE_IDLE_SECONDS", "7"), origin("MILLRACE_SERVE_ORIGIN", "http://a"),
      gear("MILLRACE_SERVE_GEAR", "fused");
  const Ended printed = millrace_command(print);
  CHECK(printed.err == "");
  CHECK(has_line(printed.out, "idle-timeout=7"));
  CHECK(has_line(printed.out, "allow-origin=[\"http://a\"]"));
  CHECK(has_line(printed.out, "backend=\"fused\""));
  const Variable twice("MILLRACE_SERVE_IDLE_TIMEOUT", "8");
  check_refused(start, 2, {"MILLRACE_SERVE_IDLE_TIMEOUT", "MILLRACE_SERVE_IDLE_SECONDS"});
}

TEST_CASE("a variable of no flag is bad usage that names the nearest one") {
  const std::vector<std::string> start{"serve", "a.mr", "--port", "0"};
  {
    const Variable mistyped("MILLRACE_SERVE_TOKENS_FILE", "/tokens");
    check_refused(start, 2, {"MILLRACE_SERVE_TOKENS_FILE: ", "the nearest is MILLRACE_SERVE_TOKEN_FILE "});
  }
  {
    const Variable far("MILLRACE_SERVE_NONSENSE", "7");
    check_refused(start, 2, {"MILLRACE_SERVE_NONSENSE: expected a flag of serve"});
  }
}

TEST_CASE("variables that Kubernetes makes of a service named millrace-serve are not settings") {
  const Variable host("MILLRACE_SERVE_SERVICE_HOST", "10.0.0.1"), tcp("MILLRACE_SERVE_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
      port("MILLRACE_SERVE_PORT", "tcp://10.0.0.1:8080");
  CHECK(millrace_command({"serve", "a.mr", "--port", "0", "--print-config"}).err == "");
  check_refused({"serve", "a.mr"}, 2, {"MILLRACE_SERVE_PORT", "tcp://10.0.0.1:8080"});
}

TEST_CASE("printed numbers and texts are TOML of their kind") {
  const Ended printed = millrace_command({"serve", "true", "--port", "0", "--idle-timeout", ".5", "--admin", "9100", "--memory-limit", "1K",
                                          "--token-file", "a\tb\"\\#", "--print-config"});
  CHECK(printed.err == "");
  CHECK(has_line(printed.out, "model=\"true\""));
  CHECK(has_line(printed.out, "idle-timeout=0.5"));
  CHECK(has_line(printed.out, "admin=\"9100\""));
  CHECK(has_line(printed.out, "memory-limit=1024"));
  CHECK(has_line(printed.out, "token-file=\"a\\tb\\\"\\\\#\""));
  check_refused({"serve", "a\xff.mr", "--port", "0", "--print-config"}, 1, {"UTF-8", "a\\xff.mr"});
}

TEST_CASE("an empty value is an error that names its variable or flag, and turns nothing on") {
  const std::vector<std::string> start{"serve", "a.mr", "--port", "0"};
  for (const char* name : {"MILLRACE_SERVE_INSECURE", "MILLRACE_SERVE_LOG_JSON", "MILLRACE_SERVE_PORT", "MILLRACE_SERVE_TOKEN_FILE",
                           "MILLRACE_SERVE_MODEL", "MILLRACE_SERVE_ALLOW_ORIGIN", "MILLRACE_SERVE_CAPACITY"}) {
    const Variable empty(name, "");
    check_refused(start, 2, {name, "expected a value, found none"});
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

TEST_CASE("numbers with a zero before them and variables of flags that stand on the command line alone are errors") {
  const ScratchFolder folder;
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

TEST_CASE("--allow-origin takes an origin as browsers write it and refuses what none of them sends") {
  for (const auto& [given, kept] : {std::pair{"HTTPS://Example.COM", "https://example.com"},
                                    {"http://a:8080", "http://a:8080"},
                                    {"http://a:80", "http://a"},
                                    {"https://a:443", "https://a"},
                                    {"https://a:80", "https://a:80"},
                                    {"http://[0:0::1]:9000", "http://[::1]:9000"},
                                    {"chrome-extension://abc", "chrome-extension://abc"},
                                    {"null", "null"}}) {
    const Ended printed = millrace_command({"serve", "a.mr", "--port", "0", "--allow-origin", given, "--print-config"});
    CHECK(printed.err == "");
    CHECK_MESSAGE(has_line(printed.out, "allow-origin=[\"" + std::string(kept) + "\"]"), given, " in ", printed.out);
  }
  for (const char* wrong :
       {"foo", "*", "http://a/", "http://", "://a", "http://a:", "http://a:0", "http://a:080", "http://a:65536", "http://a b", "http://u@a",
        "http://*.a", "http://a?b", "http://[::1", "http://[::g]", "http://::1", "http://caf\xc3\xa9", "1http://a"})
    check_refused({"serve", "a.mr", "--port", "0", "--allow-origin", wrong}, 2,
                  {"--allow-origin", "scheme://host:port", "found '" + std::string(wrong) + "'"});
  const Variable variable("MILLRACE_SERVE_ALLOW_ORIGIN", "http://a/");
  check_refused({"serve", "a.mr", "--port", "0"}, 2, {"MILLRACE_SERVE_ALLOW_ORIGIN", "found 'http://a/'"});
}
