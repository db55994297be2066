// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <apps/serving.h>
#include <apps/variable.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

bool has_line(const std::string& text, const std::string& line) { return ("\n" + text).find("\n" + line + "\n") != std::string::npos; }

/// A file of settings, and the command with it.
struct Settings {
  void write(const std::string& text) const { std::ofstream(file, std::ios::binary) << text; }
  /// The output of --print-config for a file of `text`.
  Ended printed(const std::string& text) const {
    write(text);
    return millrace_command({"serve", "a.mr", "--port", "0", "--settings", file, "--print-config"});
  }
  /// Checks that `text` is bad usage in one line that begins with FILE:LINE and holds each of `words`.
  void refuses(const std::string& text, int line, std::vector<std::string> words) const {
    write(text);
    INFO("settings ", text);
    words.push_back("millrace: " + file + ":" + std::to_string(line) + ": ");
    check_refused({"serve", "a.mr", "--port", "0", "--settings", file}, 2, words);
  }

  ScratchFolder folder;
  std::string file = (folder / "settings.toml").string();
};

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

TEST_CASE("settings that are no flags or do not fit are bad usage, by file, line and name") {
  const Settings settings;
  check_refused({"serve", "a.mr", "--port", "0", "--settings", settings.file}, 2, {"--settings", "settings.toml"});
  check_refused({"serve", "a.mr", "--port", "0", "--settings", settings.folder.path().string()}, 2, {"--settings"});
  settings.refuses("\nno-such-flag = 1\n", 2, {"expected a flag of serve, found no-such-flag"});
  settings.refuses("max-session = 1\n", 1, {"found max-session; the nearest is max-sessions"});
  settings.refuses("max-sessions = 0\n", 1, {"--max-sessions"});
  settings.refuses("settings = \"b.toml\"\n", 1, {"found settings"});
  settings.refuses("[serve]\nmax-sessions = 1\n", 1, {"found [serve]"});
  settings.refuses("[other]\n", 1, {"found [other]"});
  settings.refuses("[route.a]\nmodel = \"a.mr\"\nstats = 1\n", 3,
                   {"[route.a]: expected model, state, const, row, config or weights, found stats"});
  settings.refuses("[route]\nmodel = \"a.mr\"\n", 2, {"expected tables [route.NAME], found route.model"});
  settings.refuses("route = 1\n", 1, {"expected tables [route.NAME], found integer"});
  settings.write("[route.a]\n");
  check_refused({"serve", "a.mr", "--port", "0", "--settings", settings.file, "--print-config"}, 2,
                {"[route.a]: expected model = FILE, found none"});
}

TEST_CASE("an empty value of a file is an error that names its key, and turns nothing on") {
  const Settings settings;
  settings.refuses("token-file = \"\"\n", 1, {"token-file", "expected a value, found none"});
  settings.refuses("admin = \"\"\n", 1, {"admin", "expected a value, found none"});
  settings.refuses("allow-origin = []\n", 1, {"allow-origin", "expected a value, found none"});
  settings.refuses("allow-origin = [\"http://a\", \"\"]\n", 1, {"allow-origin", "expected a value, found none"});
  settings.refuses("insecure = \"\"\n", 1, {"insecure: expected true or false, found a string"});
}

TEST_CASE("values of a file are those of TOML") {
  const Settings settings;
  const Ended printed = settings.printed(
      "\xef\xbb\xbfmax-sessions = 2_000 # a comment\r\nmax-chunks = 0x10\nidle-timeout = 1.5\n\"max-control\" = 0o17\n"
      "token-file = \"a#b\\tc\\u0041\\\"\\u00e9\"\ntls-cert = 'a\\tb'\ntls-key = \"\"\"\na\"\"\"\n"
      "allow-origin = [\n  \"http://a\", # one\n  \"http://b\",\n]\n"
      "log-json = true\nquiet = false\nadmin = 9100\nmemory-limit = \"2G\"\nroute.a.model = \"a,b.mr\"\n");
  CHECK(printed.err == "");
  for (const char* line :
       {"max-sessions=2000", "max-chunks=16", "idle-timeout=1.5", "max-control=15", "token-file=\"a#b\\tcA\\\"\xc3\xa9\"",
        "tls-cert=\"a\\\\tb\"", "tls-key=\"a\"", "allow-origin=[\"http://a\", \"http://b\"]", "log-json=true", "quiet=false",
        "admin=\"9100\"", "memory-limit=2147483648", "[route.a]\nmodel=\"a,b.mr\""})
    CHECK_MESSAGE(has_line(printed.out, line), line, " in ", printed.out);
}

TEST_CASE("text that is no TOML is an error of one line with its place") {
  const Settings settings;
  settings.refuses("\naddress = 127.0.0.1\n", 2, {"expected TOML"});
  settings.refuses("address = \"127.0.0.1\" junk\n", 1, {"expected TOML"});
  settings.refuses("log-json\n", 1, {"expected TOML"});
  settings.refuses("max-sessions = 010\n", 1, {"expected TOML"});
  settings.refuses("max-sessions = 1\nmax-sessions = 2\n", 2, {"expected TOML"});
  settings.refuses("token-file = \"\\q\"\n", 1, {"expected TOML"});
  settings.refuses("token-file = \"\xff\"\n", 1, {"UTF-8"});
}

TEST_CASE("a value of a file has the kind that its flag takes") {
  const Settings settings;
  settings.refuses("max-sessions = 1.5\n", 1, {"max-sessions: expected an integer, found a number with a fraction"});
  settings.refuses("max-sessions = [1, 2]\n", 1, {"max-sessions: expected one value, found an array"});
  settings.refuses("idle-timeout = true\n", 1, {"idle-timeout: expected a number, found true or false"});
  settings.refuses("idle-timeout = nan\n", 1, {"--idle-timeout", "nan"});
  settings.refuses("address = true\n", 1, {"address: expected a string, found true or false"});
  settings.refuses("log-json = 1\n", 1, {"log-json: expected true or false, found an integer"});
  settings.refuses("log-json = 2000-01-01\n", 1, {"log-json: expected a string, a number, true or false, found date"});
  settings.refuses("allow-origin = [[\"http://a\"]]\n", 1, {"allow-origin", "found array"});
  settings.refuses("token-file = \"a\\u0000b\"\n", 1, {"token-file", "NUL"});
}

TEST_CASE("each long name of a flag is a key of a file, and two of one flag are an error") {
  const Settings settings;
  const Ended printed = settings.printed("idle-seconds = 9\norigin = \"http://a\"\ngear = \"fused\"\n");
  CHECK(printed.err == "");
  CHECK(has_line(printed.out, "idle-timeout=9"));
  CHECK(has_line(printed.out, "allow-origin=[\"http://a\"]"));
  CHECK(has_line(printed.out, "backend=\"fused\""));
  settings.refuses("idle-seconds = 9\nidle-timeout = 8\n", 2, {"expected one name of a flag, found idle-seconds and idle-timeout"});
}

TEST_CASE("what is printed of any text is read again as the same settings") {
  const Settings settings;
  std::string every;
  for (char c = 1; c < 127; ++c) every += c;
  std::vector<std::string> many{"serve", "a.mr", "--port", "0", "--route", "b=c\"d.mr"};
  for (int i = 0; i < 60; ++i) many.insert(many.end(), {"--allow-origin", "https://some-host-" + std::to_string(i) + ".example"});
  std::vector<std::vector<std::string>> commands{many};
  for (const std::string& path : {every + "\x7f", std::string("true"), std::string("5"), std::string("[a].mr"),
                                  std::string("w\xc3\xa9 \xe2\x80\xae.mr"), " " + std::string(1200, '"') + std::string(1200, ' ') + ".mr"})
    commands.push_back({"serve", path, "--port", "0"});
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"--trace-limit", "1G", "--print-config"});  // the default is printed as 1G, and a value as its bytes
    const Ended first = millrace_command(command);
    REQUIRE(first.err == "");
    settings.write(first.out);
    const Ended again = millrace_command({"serve", "--settings", settings.file, "--print-config"});
    CHECK(again.err == "");
    CHECK(again.out == first.out);
  }
}
