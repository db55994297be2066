// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/number.h>

#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>

namespace millrace {
namespace {

template <class T>
void append_number(std::string& text, T value) {
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
  text.append(digits, static_cast<std::size_t>(end - digits));
}

// The one f32, among all of them (each was tried), whose shortest decimal becomes its neighbour when it is read as an f64 first.
bool reads_back_wrong(float value) { return std::fabs(value) == 7.03853069e-26f; }
bool reads_back_wrong(double) { return false; }

template <class T>
void append_float(std::string& text, T value) {
  if (std::isnan(value)) {
    text += "\"nan\"";
  } else if (std::isinf(value)) {
    text += value < 0 ? "\"-inf\"" : "\"inf\"";
  } else if (value == 0) {
    text += std::signbit(value) ? "-0.0" : "0";  // readers take "-0" for an integer, which has no sign
  } else if (reads_back_wrong(value)) {
    char digits[32];
    const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific, 8);
    text.append(digits, static_cast<std::size_t>(end - digits));
  } else {
    append_number(text, value);
  }
}

}  // namespace

void append_json_value(std::string& text, DType dtype, const std::byte* at) {
  visit_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_same_v<T, bool>) {
      text += *at == std::byte{0} ? "false" : "true";
    } else {
      T value;
      std::memcpy(&value, at, sizeof value);
      if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>)
        append_float(text, static_cast<float>(value));
      else if constexpr (std::is_floating_point_v<T>)
        append_float(text, value);
      else
        append_number(text, static_cast<long long>(value));
    }
  });
}

}  // namespace millrace
