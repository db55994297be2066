// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/byte_reader.h>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("pieces come off the front, and a cut is an error that says how much there was") {
  ByteReader reader("thing", std::string_view("\x02\x01"
                                              "abc",
                                              5));
  CHECK(reader.number<std::uint16_t>() == 0x102);
  CHECK(reader.left() == 3);
  CHECK(reader.text(2) == "ab");
  CHECK_THROWS_WITH_AS(reader.end(), "thing: expected the end, found 1 more bytes", ParseError);
  CHECK_THROWS_WITH_AS(reader.number<std::uint32_t>(), "thing: expected 4 more bytes, found 1", ParseError);
  CHECK(reader.text(1) == "c");
  reader.end();
}
