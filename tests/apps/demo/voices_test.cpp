// SPDX-License-Identifier: Apache-2.0
#include <demo/library/voices.h>

#include <cmath>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

using namespace millrace::demo;

namespace {

/// Columns of each line: characters, not bytes.
std::vector<std::size_t> widths_of(const std::string& text) {
  std::vector<std::size_t> widths;
  std::size_t width = 0;
  for (const char c : text) {
    if (c == '\n')
      widths.push_back(std::exchange(width, 0));
    else if ((static_cast<unsigned char>(c) & 0xc0) != 0x80)
      ++width;
  }
  CHECK(width == 0);
  return widths;
}

}  // namespace

TEST_CASE("a value is a block of its height, and what is outside 0 and 1 or no number shows") {
  CHECK(block_of(0) == " ");
  CHECK(block_of(0.125f) == "▁");
  CHECK(block_of(0.5f) == "▄");
  CHECK(block_of(1) == "█");
  CHECK(block_of(7) == "█");
  CHECK(block_of(-1) == " ");
  CHECK(block_of(std::nanf("")) == "?");
}

TEST_CASE("a voice is its name and its newest values, at the right") {
  const std::vector<Voice> one{{"en/hello.wav", {0, 1, 0.5f}}};
  CHECK(draw_voices(one, 15, 4) == "o.wav        █▄\n");
  const std::vector<Voice> full{{"a", std::deque<float>(100, 1.0f)}};
  CHECK(draw_voices(full, 12, 1) == "a    ███████\n");
}

TEST_CASE("no drawing is higher or wider than its terminal") {
  for (const std::size_t count : {1, 2, 63, 64, 65, 1000})
    for (const std::size_t width : {0, 11, 12, 25, 26, 80, 300})
      for (const std::size_t height : {0, 1, 2, 22, 64}) {
        CAPTURE(count);
        CAPTURE(width);
        CAPTURE(height);
        const auto widths = widths_of(draw_voices(std::vector<Voice>(count, Voice{"voice", {1, 0.5f, 0}}), width, height));
        CHECK(widths.size() <= height);
        for (const std::size_t found : widths) CHECK(found <= width);
        if (width >= 12 && height >= count) CHECK(widths.size() == count);
      }
}
