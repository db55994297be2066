// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/utf8.h>

#include <cstdint>
#include <string>

#include <doctest/doctest.h>

using namespace millrace;

namespace {

std::string encoded(std::uint32_t point, int bytes) {
  if (bytes == 1) return {static_cast<char>(point)};
  std::string text;
  for (int k = bytes - 1; k > 0; --k) text.insert(text.begin(), static_cast<char>(0x80 | ((point >> (6 * (bytes - 1 - k))) & 0x3f)));
  const std::uint32_t lead = (0xf00u >> bytes) & 0xffu;
  return static_cast<char>(lead | (point >> (6 * (bytes - 1)))) + text;
}

}  // namespace

TEST_CASE("every code point but the surrogates is UTF-8 in its shortest form only") {
  int wrong = 0;
  for (std::uint32_t point = 0; point <= 0x110010; ++point) {
    const int shortest = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    const bool legal = point <= 0x10ffff && !(point >= 0xd800 && point <= 0xdfff);
    wrong += is_utf8(encoded(point, shortest)) != legal;
    if (shortest < 4) wrong += is_utf8(encoded(point, shortest + 1));
  }
  CHECK(wrong == 0);
}

TEST_CASE("cut and stray bytes are not UTF-8") {
  CHECK(is_utf8(""));
  CHECK(is_utf8("zażółć 我爱 🎙"));
  for (const char* text : {"\x80", "a\xbf", "\xc3", "\xe2\x82", "\xf0\x9f\x8e", "\xc3(", "\xff", "\xfe\xff", "\xf8\x88\x80\x80\x80"})
    CHECK_FALSE(is_utf8(text));
}
