// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/number.h>

#include <bit>
#include <cstdlib>
#include <limits>

#include <doctest/doctest.h>

#include <support/random.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

template <class T>
std::string text_of(T value) {
  std::string text;
  append_json_values(text, dtype_of<T>, std::as_bytes(std::span(&value, 1)));
  return text;
}

}  // namespace

TEST_CASE("random f32 bits survive their decimal, read as f32 and read as f64") {
  for (const auto seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed);
    for (int k = 0; k < 5000; ++k) {
      const auto bits = static_cast<std::uint32_t>(random.next());
      const float value = std::bit_cast<float>(bits);
      if (value != value) continue;
      const std::string text = text_of(value);
      if (text.front() == '"') continue;
      REQUIRE(std::bit_cast<std::uint32_t>(std::strtof(text.c_str(), nullptr)) == bits);
      REQUIRE(std::bit_cast<std::uint32_t>(static_cast<float>(std::strtod(text.c_str(), nullptr))) == bits);
    }
  }
}

TEST_CASE("the one f32 whose shortest decimal reads as its neighbour through an f64 has two digits more") {
  CHECK(std::bit_cast<std::uint32_t>(static_cast<float>(7.038531e-26)) != std::bit_cast<std::uint32_t>(7.038531e-26f));
  CHECK(text_of(7.038531e-26f) == "7.03853069e-26");
  CHECK(text_of(-7.038531e-26f) == "-7.03853069e-26");
}

TEST_CASE("random f64, f16 and bf16 bits survive their decimal") {
  for (const auto seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed);
    for (int k = 0; k < 2000; ++k) {
      const auto bits = random.next();
      const double wide = std::bit_cast<double>(bits);
      if (wide == wide && text_of(wide).front() != '"')
        REQUIRE(std::bit_cast<std::uint64_t>(std::strtod(text_of(wide).c_str(), nullptr)) == bits);
      const auto half = std::bit_cast<float16>(static_cast<std::uint16_t>(bits));
      const auto brain = std::bit_cast<bfloat16>(static_cast<std::uint16_t>(bits));
      if (const std::string text = text_of(half); text.front() != '"')
        REQUIRE(std::bit_cast<std::uint16_t>(float16(std::strtof(text.c_str(), nullptr))) == static_cast<std::uint16_t>(bits));
      if (const std::string text = text_of(brain); text.front() != '"')
        REQUIRE(std::bit_cast<std::uint16_t>(bfloat16(std::strtof(text.c_str(), nullptr))) == static_cast<std::uint16_t>(bits));
    }
  }
}

TEST_CASE("each f16 and bf16 has the fewest digits that read back as its bits") {
  CHECK(text_of(float16(0.1f)) == "0.1");
  CHECK(text_of(float16(1.0f / 3)) == "0.3333");
  CHECK(text_of(float16(6e-8f)) == "6e-08");
  CHECK(text_of(bfloat16(0.1f)) == "0.1");
  CHECK(text_of(bfloat16(-3.14159f)) == "-3.14");
  CHECK(text_of(float16(-0.0f)) == "-0.0");
  const auto digits = [](const std::string& text) {
    std::string some;
    for (const char c : text.substr(0, text.find('e')))
      if (c >= '0' && c <= '9') some += c;
    some.erase(0, some.find_first_not_of('0'));
    return some.substr(0, some.find_last_not_of('0') + 1).size();
  };
  const auto check = [&]<class Half>(Half half) {
    const std::string text = text_of(half);
    if (text.front() == '"' || static_cast<float>(half) == 0) return;
    const auto bits = std::bit_cast<std::uint16_t>(half);
    REQUIRE(std::bit_cast<std::uint16_t>(convert_element<Half>(std::strtod(text.c_str(), nullptr))) == bits);
    char shorter[32];
    std::snprintf(shorter, sizeof shorter, "%.*e", static_cast<int>(digits(text)) - 2, static_cast<double>(static_cast<float>(half)));
    if (digits(text) > 1) REQUIRE(std::bit_cast<std::uint16_t>(convert_element<Half>(std::strtod(shorter, nullptr))) != bits);
  };
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    INFO("bits ", bits);
    check(std::bit_cast<float16>(static_cast<std::uint16_t>(bits)));
    check(std::bit_cast<bfloat16>(static_cast<std::uint16_t>(bits)));
  }
}

TEST_CASE("the decimals are short, and what JSON lacks is a string") {
  CHECK(text_of(0.1f) == "0.1");
  CHECK(text_of(1.0f) == "1");
  CHECK(text_of(0.0f) == "0");
  CHECK(text_of(-0.0f) == "-0.0");
  CHECK(text_of(-0.0) == "-0.0");
  CHECK(text_of(1e20f) == "1e+20");
  CHECK(text_of(std::numeric_limits<float>::quiet_NaN()) == "\"nan\"");
  CHECK(text_of(std::numeric_limits<float>::infinity()) == "\"inf\"");
  CHECK(text_of(-std::numeric_limits<double>::infinity()) == "\"-inf\"");
}

TEST_CASE("integers are exact and a bool is a word") {
  CHECK(text_of(std::numeric_limits<std::int64_t>::min()) == "-9223372036854775808");
  CHECK(text_of(std::int64_t{9007199254740993}) == "9007199254740993");
  CHECK(text_of(std::int8_t{-128}) == "-128");
  CHECK(text_of(std::uint8_t{255}) == "255");
  CHECK(text_of(true) == "true");
  CHECK(text_of(false) == "false");
}
