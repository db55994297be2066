// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/admin/log_line.h>

#include <chrono>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace millrace;

namespace {

const std::chrono::system_clock::time_point when{std::chrono::milliseconds(1785589200042)};

}  // namespace

TEST_CASE("a session that is over is a line of JSON, whatever its client called it") {
  Server::SessionEnd end;
  end.number = 7;
  end.address = "127.0.0.1";
  end.label = "a \"name\"\n\xff";
  end.outcome = "ended";
  end.steps = 12;
  end.seconds = 0.5;
  end.started = true;
  const std::string line = json_line(end, when);
  CHECK(line.find('\n') == line.npos);
  CHECK(line ==
        "{\"time\":\"2026-08-01T13:00:00.042Z\",\"level\":\"info\",\"event\":\"session_end\",\"number\":7,\"address\":\"127.0.0.1\","
        "\"session\":\"a \\\"name\\\"\\n\xef\xbf\xbd\",\"outcome\":\"ended\",\"steps\":12,\"seconds\":0.5}");
}

TEST_CASE("a connection that was refused is a warning with its reason") {
  Server::SessionEnd end;
  end.outcome = "overload";
  end.why = "2 sessions are live";
  const auto line = nlohmann::json::parse(json_line(end, when));
  CHECK(line["level"] == "warn");
  CHECK(line["event"] == "refused");
  CHECK(line["outcome"] == "overload");
  CHECK(line["why"] == "2 sessions are live");
}

TEST_CASE("other events have a message for people") {
  const auto line = nlohmann::json::parse(json_line("warn", "reload", "nothing was read again", when));
  CHECK(line["event"] == "reload");
  CHECK(line["message"] == "nothing was read again");
}

TEST_CASE("text of others neither breaks a line of a log nor turns its direction") {
  CHECK(one_line("kitchen, caf\xc3\xa9 \xe2\x80\x93 2") == "kitchen, caf\xc3\xa9 \xe2\x80\x93 2");
  CHECK(one_line("a\nb\x7f\x1b[31m") == "a?b??[31m");
  CHECK(one_line("a\xe2\x80\xae"
                 "b\xe2\x81\xa6"
                 "c\xe2\x80\xa8"
                 "d\xd8\x9c"
                 "e\xc2\x85"
                 "f") == "a?b?c?d?e?f");
  CHECK(one_line("cut \xe2\x80") == "cut \xe2\x80");
}
