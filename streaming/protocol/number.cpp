// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/number.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

namespace millrace {
namespace {

constexpr std::size_t longest = 32;  // text of one element

template <class T>
char* put_number(char* to, T value) {
  return std::to_chars(to, to + longest, value).ptr;
}

char* put_text(char* to, std::string_view text) { return std::copy(text.begin(), text.end(), to); }

// The one f32, among all of them (each was tried), whose shortest decimal becomes its neighbour when it is read as an f64 first.
bool reads_back_wrong(float value) { return std::fabs(value) == 7.03853069e-26f; }
bool reads_back_wrong(double) { return false; }

template <class T>
char* put_float(char* to, T value) {
  if (std::isnan(value)) return put_text(to, "\"nan\"");
  if (std::isinf(value)) return put_text(to, value < 0 ? "\"-inf\"" : "\"inf\"");
  if (value == 0) return put_text(to, std::signbit(value) ? "-0.0" : "0");  // readers take "-0" for an integer, which has no sign
  if (reads_back_wrong(value)) return std::to_chars(to, to + longest, value, std::chars_format::scientific, 8).ptr;
  return put_number(to, value);
}

template <class T>
char* put_element(char* to, const std::byte* at) {
  if constexpr (std::is_same_v<T, bool>) {
    return put_text(to, *at == std::byte{0} ? "false" : "true");
  } else {
    T value;
    std::memcpy(&value, at, sizeof value);
    if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>)
      return put_float(to, static_cast<float>(value));
    else if constexpr (std::is_floating_point_v<T>)
      return put_float(to, value);
    else
      return put_number(to, static_cast<long long>(value));
  }
}

}  // namespace

void append_json_values(std::string& text, DType dtype, std::span<const std::byte> elements) {
  visit_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr std::size_t at_once = 32;
    char some[at_once * (longest + 1)];
    char* end = some;
    const std::size_t count = elements.size() / sizeof(T);
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) *end++ = ',';
      end = put_element<T>(end, elements.data() + i * sizeof(T));
      if ((i + 1) % at_once == 0 || i + 1 == count) text.append(some, static_cast<std::size_t>(std::exchange(end, some) - some));
    }
  });
}

}  // namespace millrace
