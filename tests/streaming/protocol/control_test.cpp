// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/control.h>

#include <doctest/doctest.h>

#include <support/bytes.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

StartMessage start_of(const std::string& text) { return std::get<StartMessage>(parse_client_message(text)); }

ErrorCode refusal(const std::string& text) {
  try {
    parse_client_message(text);
  } catch (const ProtocolError& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.code();
  }
  FAIL("taken: ", text);
  return ErrorCode::failed;
}

std::string nested(int depth) {
  std::string text = R"({"type":"start","version":1,"inputs":)";
  for (int k = 0; k < depth; ++k) text += "[";
  return text + std::string(static_cast<std::size_t>(depth), ']') + "}";
}

}  // namespace

TEST_CASE("the least start leaves everything to the defaults") {
  const StartMessage start = start_of(R"({"type": "start", "version": 1})");
  CHECK(start.version == 1);
  CHECK(start.session.empty());
  CHECK(start.inputs.empty());
  CHECK_FALSE(start.outputs);
  CHECK(start.reply == ReplyFormat::json);
  CHECK_FALSE(start.segments);
}

TEST_CASE("a start that says everything survives its text") {
  StartMessage start;
  start.session = "küche";
  start.inputs["x"].dtype = DType::bf16;
  start.inputs["x"].shape = DDim{3, 40};
  start.inputs["mic"].format = SampleFormat::f32;
  start.inputs["mic"].rate = 44100;
  start.inputs["mic"].channels = 2;
  start.outputs = {"b", "a"};
  start.reply = ReplyFormat::binary;
  start.segments = true;
  const StartMessage read = start_of(to_json(start));
  CHECK(read.session == start.session);
  REQUIRE(read.inputs.size() == 2);
  CHECK(read.inputs.at("x").dtype == DType::bf16);
  CHECK(read.inputs.at("x").shape == DDim{3, 40});
  CHECK_FALSE(read.inputs.at("x").rate);
  CHECK(read.inputs.at("mic").format == SampleFormat::f32);
  CHECK(read.inputs.at("mic").rate == 44100);
  CHECK(read.inputs.at("mic").channels == 2);
  CHECK(read.outputs == start.outputs);
  CHECK(read.reply == ReplyFormat::binary);
  CHECK(read.segments);
}

TEST_CASE("a start from a state, a resumption, a save and an acknowledgement survive their text") {
  StartMessage start;
  start.state = "Zm9v";
  CHECK(start_of(to_json(start)).state == "Zm9v");
  start = StartMessage();
  start.resume = "ticket";
  start.acknowledged = 12;
  CHECK(start_of(to_json(start)).resume == "ticket");
  CHECK(start_of(to_json(start)).acknowledged == 12);
  CHECK(refusal(R"({"type":"start","version":1,"resume":"t","reply":"json"})") == ErrorCode::bad_message);
  CHECK(refusal(R"({"type":"start","version":1,"acknowledged":1})") == ErrorCode::bad_input);
  CHECK(std::holds_alternative<SaveMessage>(parse_client_message(to_json(SaveMessage()))));
  CHECK(std::get<AcknowledgeMessage>(parse_client_message(to_json(AcknowledgeMessage{7}))).messages == 7);
  CHECK(refusal(R"({"type":"acknowledge","messages":-1})") == ErrorCode::bad_message);
  CHECK(refusal(R"({"type":"save","now":true})") == ErrorCode::bad_message);
}

TEST_CASE("a number that is no integer is quoted where one was expected") {
  CHECK_THROWS_WITH_AS(parse_client_message(R"({"type":"start","version":1.0})"),
                       "start.version: expected an integer from 0 to 2147483647, found the number 1.0", ProtocolError);
}

TEST_CASE("an end is an end") {
  CHECK(std::holds_alternative<EndMessage>(parse_client_message(to_json(EndMessage()))));
  CHECK(refusal(R"({"type":"end","now":true})") == ErrorCode::bad_message);
}

TEST_CASE("text that is not JSON, or not a message, is a bad message") {
  for (const char* text : {"",
                           "{",
                           "nul",
                           "[]",
                           "3",
                           "\"start\"",
                           "{} {}",
                           "{\"type\":1}",
                           "{\"type\":\"begin\"}",
                           "{}",
                           "{\"version\":1}",
                           "{\"type\":\"start\"}",
                           R"({"type":"start","version":1,"extra":0})",
                           R"({"type":"start","version":"1"})",
                           R"({"type":"start","version":1,"inputs":[]})",
                           R"({"type":"start","version":1,"inputs":{"x":3}})",
                           R"({"type":"start","version":1,"inputs":{"x":{"rate":true}}})",
                           R"({"type":"start","version":1,"inputs":{"x":{"rate":1e4}}})",
                           R"({"type":"start","version":1,"inputs":{"x":{"shape":[-1]}}})",
                           R"({"type":"start","version":1,"outputs":"y"})",
                           R"({"type":"start","version":1,"segments":1})",
                           R"({"type":"start","version":1e999})",
                           R"({"type":"start","version":1,"inputs":{"x":{"rate":99999999999999999999}}})",
                           R"({"type":"start","version":NaN})"})
    CHECK(refusal(text) == ErrorCode::bad_message);
}

TEST_CASE("a start that no program of this version can take is bad input") {
  for (const char* text :
       {R"({"type":"start","version":2,"whatever":{}})", R"({"type":"start","version":1,"reply":"xml"})",
        R"({"type":"start","version":1,"inputs":{"x":{"dtype":"f31"}}})", R"({"type":"start","version":1,"inputs":{"x":{"format":"mp3"}}})",
        R"({"type":"start","version":1,"inputs":{"x":{"shape":[1,1,1,1,1,1,1,1,1,1]}}})",
        R"({"type":"start","version":1,"session":"a\u0007b"})", R"({"type":"start","version":1,"outputs":["y","y"]})"})
    CHECK(refusal(text) == ErrorCode::bad_input);
  CHECK(refusal(R"({"type":"start","version":1,"session":")" + std::string(129, 'a') + "\"}") == ErrorCode::bad_input);
}

TEST_CASE("text that is not UTF-8 is bad text") {
  CHECK(refusal("{\"type\":\"start\",\"version\":1,\"session\":\"\xff\"}") == ErrorCode::bad_text);
  CHECK(refusal("\xc3\x28") == ErrorCode::bad_text);
}

TEST_CASE("depth is bounded, also tens of thousands deep") {
  CHECK(refusal(nested(8)) == ErrorCode::bad_message);
  CHECK(refusal(nested(30'000)) == ErrorCode::bad_message);
  CHECK(refusal(std::string(60'000, '[')) == ErrorCode::bad_message);
  CHECK_THROWS_WITH_AS(parse_client_message(nested(8)), "control: expected JSON at most 8 deep", ProtocolError);
}

TEST_CASE("a key that stands twice is refused at every level") {
  CHECK(refusal(R"({"type":"end","type":"end"})") == ErrorCode::bad_message);
  CHECK(refusal(R"({"type":"start","version":1,"inputs":{"x":{},"x":{}}})") == ErrorCode::bad_message);
  CHECK(refusal(R"({"type":"start","version":1,"inputs":{"x":{"rate":8000,"rate":8000}}})") == ErrorCode::bad_message);
}

TEST_CASE("damaged control text gives a message or a typed error") {
  StartMessage start;
  start.inputs["x"].dtype = DType::f32;
  start.inputs["x"].shape = DDim{40};
  start.outputs = {"y"};
  for (const auto seed : seeds(500)) {
    INFO("seed ", seed);
    Random random(seed);
    try {
      parse_client_message(damaged(to_json(start), random));
    } catch (const ProtocolError& error) {
      CHECK(std::string(error.what()).size() < 400);
    }
  }
}

TEST_CASE("an error quotes no more than a kilobyte of what a peer sent, and cuts no character") {
  for (std::size_t before = 0; before < 3; ++before) {
    ErrorMessage error;
    error.message = std::string(before, 'a');
    for (int i = 0; i < 300000; ++i) error.message += "\u5bb6";
    const std::string text = to_json(error);
    CHECK(text.size() < 1100);
    const auto quoted = text.substr(text.find("\"message\":\"") + 11);
    CHECK(quoted.find('"') <= 1024);
    CHECK(quoted.find('"') >= 1019);
    CHECK(text.find("\xef\xbf\xbd") == std::string::npos);
  }
}

TEST_CASE("an error message survives text that is not UTF-8") {
  ErrorMessage error;
  error.message = "input '\xff'";
  error.retry_after_ms = 250;
  error.seq = 12;
  CHECK(to_json(error) ==
        "{\"type\":\"error\",\"code\":\"failed\",\"message\":\"input '\xef\xbf\xbd'\",\"retry_after_ms\":250,\"seq\":12}");
}

TEST_CASE("control text is bounded in bytes, keys and containers, and is read in linear time") {
  const auto start_with = [](const std::string& what) { return R"({"type":"start","version":1,"given":{)" + what + "}}"; };
  std::string keys, numbers = R"("h":[0)", objects = R"("h":[0)";
  for (int k = 0; k < 1100; ++k) keys += (k > 0 ? ",\"" : "\"") + std::to_string(k) + "\":1";
  for (int k = 0; k < 20000; ++k) numbers += ",1";
  for (int k = 0; k < 20000; ++k) objects += ",{}";
  CHECK(start_of(start_with(numbers + "]")).given.at("h").size() == 20001);
  CHECK(refusal(start_with(keys)) == ErrorCode::bad_message);
  CHECK(refusal(start_with("\"h\":\"" + std::string(70000, 'x') + '"')) == ErrorCode::too_big);
  // Objects in one array once cost the square of their number: 60 KB took seconds.
  try {
    parse_client_message(start_with(objects + "]"));
    FAIL("taken");
  } catch (const ProtocolError& error) {
    CHECK(error.code() == ErrorCode::bad_message);
    CHECK(std::string(error.what()) == "control: expected at most 4096 objects and arrays");
  }
  // Names that stand twice are found among many.
  std::string names;
  for (int k = 0; k < 9000; ++k) names += std::to_string(k) + "\",\"";
  CHECK(start_of(R"({"type":"start","version":1,"outputs":[")" + names + "x\"]}").outputs->size() == 9001);
  CHECK(refusal(R"({"type":"start","version":1,"outputs":[")" + names + "0\"]}") == ErrorCode::bad_input);
}
