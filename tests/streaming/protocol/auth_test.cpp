// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/auth.h>

#include <doctest/doctest.h>

#include <millrace/streaming/protocol/error_code.h>

using namespace millrace;

TEST_CASE("auth reads what it writes") {
  const std::string text = to_json(AuthMessage{"0123456789abcdef"});
  CHECK(text == R"({"type":"auth","token":"0123456789abcdef"})");
  CHECK(parse_auth_message(text).token == "0123456789abcdef");
}

TEST_CASE("anything else ahead of start is refused, and its text is not quoted") {
  const auto code = [](const std::string& text) {
    try {
      parse_auth_message(text);
    } catch (const ProtocolError& error) {
      CHECK(std::string(error.what()).find("secret") == std::string::npos);
      return name_of(error.code());
    }
    return std::string_view("none");
  };
  CHECK(code(R"({"type":"start","version":1,"session":"secret"})") == "bad_message");
  CHECK(code(R"({"type":"start","version":1})") == "bad_message");
  CHECK(code(R"({"type":"auth"})") == "bad_message");
  CHECK(code(R"({"type":"auth","token":17})") == "bad_message");
  CHECK(code(R"({"type":"auth","key":"a"})") == "bad_message");
  CHECK(code(R"({"type":"auth","token":["secret"]})") == "bad_message");
  CHECK(code("not json") == "bad_message");
  CHECK(code("\"\xff\"") == "bad_text");
  CHECK(code("{\"type\":\"auth\",\"token\":\"" + std::string(most_auth_bytes, 'a') + "\"}") == "too_big");
}
