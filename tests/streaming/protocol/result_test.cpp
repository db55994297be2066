// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/result.h>

#include <doctest/doctest.h>

#include <support/bytes.h>
#include <support/pieces.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

OutputRows rows_of(const std::string& name, const std::string& bytes) {
  OutputRows rows;
  rows.name = name;
  rows.dtype = DType::u8;
  rows.bytes = bytes_of(bytes);
  return rows;
}

}  // namespace

TEST_CASE("a binary result carries the first step, the number of steps and named rows") {
  const std::string a = "y", b = "mel", ra = "abcd", rb = "";
  const OutputRows outputs[] = {rows_of(a, ra), rows_of(b, rb)};
  const Message message = binary_result(0x0102030405060708, 2, outputs);
  CHECK(message.payload == std::string("\x08\7\6\5\4\3\2\1\2\0\0\0\2\1y\4\0\0\0abcd\3mel\0\0\0\0", 31));
  const ResultMessage result = parse_binary_result(message.bytes());
  CHECK(result.seq == 0x0102030405060708);
  CHECK(result.steps == 2);
  REQUIRE(result.outputs.size() == 2);
  CHECK(result.outputs[0].name == "y");
  CHECK(result.outputs[0].bytes == "abcd");
  CHECK(result.outputs[1].name == "mel");
  CHECK(result.outputs[1].bytes.empty());
}

TEST_CASE("a binary result that is cut anywhere, or goes on after its end, is refused") {
  const std::string name = "y", bytes = "abcd";
  const OutputRows outputs[] = {rows_of(name, bytes)};
  const std::string whole = binary_result(7, 1, outputs).payload;
  for (std::size_t size = 0; size < whole.size(); ++size)
    CHECK_THROWS_AS(parse_binary_result(bytes_of(whole.substr(0, size))), ProtocolError);
  CHECK_THROWS_AS(parse_binary_result(bytes_of(whole + "x")), ProtocolError);
  for (const auto seed : seeds(300)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::string hostile = damaged(whole, random);
    try {
      parse_binary_result(bytes_of(hostile));
    } catch (const ProtocolError& error) {
      CHECK(error.code() == ErrorCode::bad_message);
    }
  }
}

TEST_CASE("names and outputs that do not fit their bytes are refused") {
  const std::string name(256, 'n'), none;
  const OutputRows outputs[] = {rows_of(name, none)};
  CHECK_THROWS_AS(binary_result(0, 1, outputs), ArgumentError);
  const std::vector<OutputRows> many(256, rows_of(none, none));
  CHECK_THROWS_AS(binary_result(0, 1, many), ArgumentError);
}
