// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/data.h>

#include <doctest/doctest.h>

#include <millrace/streaming/protocol/error_code.h>
#include <support/pieces.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

std::string text(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

TEST_CASE("data for the only input is the bytes alone") {
  const Message message = encode_data("", bytes_of("\x03xyz"));
  CHECK(message.kind == MessageKind::binary);
  const DataView view = parse_data(message, false);
  CHECK(view.input.empty());
  CHECK(text(view.bytes) == "\x03xyz");
}

TEST_CASE("data for one of several inputs names it") {
  const Message message = encode_data("left", bytes_of("rows"));
  CHECK(message.payload == "\x04leftrows");
  const DataView view = parse_data(message, true);
  CHECK(view.input == "left");
  CHECK(text(view.bytes) == "rows");
  CHECK(text(parse_data(encode_data("left", {}), true).bytes).empty());
}

TEST_CASE("a cut name is refused") {
  CHECK_THROWS_AS(parse_data(binary_message(""), true), ProtocolError);
  CHECK_THROWS_AS(parse_data(binary_message("\x05left"), true), ProtocolError);
  CHECK_THROWS_AS(encode_data(std::string(256, 'x'), {}), ArgumentError);
}
