// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/result.h>

#include <bit>
#include <cmath>
#include <cstring>

#include <doctest/doctest.h>

#include <support/bytes.h>
#include <support/pieces.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

PortSpec port(const std::string& name, DType dtype, const DDim& shape) {
  PortSpec spec;
  spec.name = name;
  spec.dtype = dtype;
  spec.shape = shape;
  return spec;
}

StartedMessage started_with(std::vector<PortSpec> outputs) {
  StartedMessage started;
  started.session = "s";
  started.inputs = {port("x", DType::f32, DDim{40})};
  started.outputs = std::move(outputs);
  return started;
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

ReplyReader reader_after(const StartedMessage& started) {
  ReplyReader reader;
  reader.read(text_message(to_json(started)));
  return reader;
}

}  // namespace

TEST_CASE("random f32 rows survive a JSON result to the bit, but for the payload of a NaN") {
  for (const auto seed : seeds(50)) {
    INFO("seed ", seed);
    Random random(seed);
    std::vector<float> values(200);
    for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
    values[0] = -0.0f;
    values[1] = std::nanf("");
    values[2] = -INFINITY;
    const std::string bytes = raw(values);
    OutputRows rows;
    rows.name = "y\"\\";
    rows.bytes = bytes_of(bytes);
    ReplyReader reader = reader_after(started_with({port("y\"\\", DType::f32, DDim{10, 20})}));
    const auto result = std::get<ResultMessage>(reader.read(json_result(7, {&rows, 1})));
    CHECK(result.seq == 7);
    REQUIRE(result.outputs.size() == 1);
    REQUIRE(result.outputs[0].bytes.size() == bytes.size());
    for (std::size_t k = 0; k < values.size(); ++k) {
      float read;
      std::memcpy(&read, result.outputs[0].bytes.data() + 4 * k, 4);
      if (std::isnan(values[k]))
        REQUIRE(std::isnan(read));
      else
        REQUIRE(std::bit_cast<std::uint32_t>(read) == std::bit_cast<std::uint32_t>(values[k]));
    }
  }
}

TEST_CASE("rows of every dtype survive a JSON result") {
  const auto check = [](auto... values) {
    using T = std::common_type_t<decltype(values)...>;
    const T list[] = {values...};
    const std::string bytes(reinterpret_cast<const char*>(list), sizeof list);
    OutputRows rows;
    rows.name = "y";
    rows.dtype = dtype_of<T>;
    rows.bytes = bytes_of(bytes);
    ReplyReader reader = reader_after(started_with({port("y", dtype_of<T>, DDim{static_cast<std::int64_t>(sizeof...(values))})}));
    CHECK(std::get<ResultMessage>(reader.read(json_result(0, {&rows, 1}))).outputs[0].bytes == bytes);
  };
  check(0.1, -1e300, 5e-324);
  check(float16(0.1f), float16(-65504.0f));
  check(bfloat16(0.1f), bfloat16(-3e38f));
  check(std::int64_t{INT64_MIN}, std::int64_t{INT64_MAX}, std::int64_t{9007199254740993});
  check(std::int32_t{INT32_MIN}, std::int32_t{INT32_MAX});
  check(std::int8_t{-128}, std::int8_t{127});
  check(std::uint8_t{0}, std::uint8_t{255});
  check(true, false, true);
}

TEST_CASE("every reply survives its text") {
  StartedMessage started = started_with({port("y", DType::f32, DDim{})});
  started.reply = ReplyFormat::binary;
  AudioFormat format;
  format.rate = 8000;
  format.channels = 2;
  started.inputs[0].audio = format;
  started.inputs[0].step_seconds = 0.032;
  ReplyReader reader = reader_after(started);
  REQUIRE(reader.started());
  CHECK(reader.started()->session == "s");
  CHECK(reader.started()->reply == ReplyFormat::binary);
  CHECK(reader.started()->inputs[0].audio == format);
  CHECK(reader.started()->inputs[0].step_seconds == 0.032);
  CHECK(reader.started()->outputs[0].shape == DDim{});

  SegmentMessage segment;
  segment.label = "speech";
  segment.start = 0.48;
  segment.end = 1.63;
  const auto read_segment = std::get<SegmentMessage>(reader.read(text_message(to_json(segment))));
  CHECK(read_segment.label == "speech");
  CHECK(read_segment.start == 0.48);
  CHECK(read_segment.end == 1.63);

  EndedMessage ended;
  ended.steps = 25;
  CHECK(std::get<EndedMessage>(reader.read(text_message(to_json(ended)))).steps == 25);

  ErrorMessage error;
  error.code = ErrorCode::overload;
  error.message = "full";
  error.retry_after_ms = 1000;
  const auto read_error = std::get<ErrorMessage>(reader.read(text_message(to_json(error))));
  CHECK(read_error.code == ErrorCode::overload);
  CHECK(read_error.message == "full");
  CHECK(read_error.retry_after_ms == 1000);
  CHECK_FALSE(read_error.seq);
}

TEST_CASE("results that do not fit what was started are refused") {
  ReplyReader early;
  CHECK_THROWS_AS(early.read(text_message(R"({"type":"ended","steps":0})")), ProtocolError);
  CHECK(std::holds_alternative<ErrorMessage>(early.read(text_message(R"({"type":"error","code":"new_cause"})"))));
  ReplyReader reader = reader_after(started_with({port("y", DType::f32, DDim{2})}));
  for (const char* text : {R"({"type":"result","seq":0,"outputs":{"y":[1]}})", R"({"type":"result","seq":0,"outputs":{"z":[1,2]}})",
                           R"({"type":"result","seq":0,"outputs":{"y":[1,"one"]}})", R"({"type":"result","seq":-1,"outputs":{"y":[1,2]}})",
                           R"({"type":"result","outputs":{"y":[1,2]}})", R"({"type":"started"})", R"({"type":"greeting"})"})
    CHECK_THROWS_AS(reader.read(text_message(text)), ProtocolError);
  const std::string name = "y", bytes = "1234567";
  OutputRows rows;
  rows.name = name;
  rows.bytes = bytes_of(bytes);
  CHECK_THROWS_AS(reader.read(binary_result(0, 1, {&rows, 1})), ProtocolError);
  CHECK_THROWS_AS(reader.read(binary_result(0, 1, {})), ProtocolError);
}

TEST_CASE("damaged replies give a value or a protocol error") {
  const std::string started = to_json(started_with({port("y", DType::f32, DDim{2})}));
  const std::string result = R"({"type":"result","seq":3,"outputs":{"y":[0.5,"nan"]}})";
  for (const auto seed : seeds(500)) {
    INFO("seed ", seed);
    Random random(seed);
    ReplyReader reader;
    try {
      reader.read(text_message(random.coin() ? started : damaged(started, random)));
      reader.read(text_message(damaged(result, random)));
    } catch (const ProtocolError&) {
      continue;
    }
  }
}
