// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/number.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
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

constexpr int most_exact_power = 22;
constexpr double powers[most_exact_power + 1] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                                 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/// `value` with so many decimal digits, as an f64; `other_side`: not the nearest number of those digits, but the one on the other side of `value`. NaN where that would take more than
/// a product or a quotient of exact numbers.
double rounded(double value, int digits, bool other_side) {
  const int shift = digits - 1 - static_cast<int>(std::floor(std::log10(std::fabs(value))));
  if (std::abs(shift) > most_exact_power) return std::numeric_limits<double>::quiet_NaN();
  const double scaled = shift >= 0 ? value * powers[shift] : value / powers[-shift];
  double whole = std::nearbyint(scaled);
  if (other_side) whole += whole < scaled ? 1 : -1;
  return shift >= 0 ? whole / powers[shift] : whole * powers[-shift];
}

/// The f64 with the shortest decimal among those that become `half` when they are rounded to its type.
template <class Half>
double shortest(Half half) {
  const double exact = static_cast<float>(half);
  const auto is_same = [half](double read) {
    const Half back = convert_element<Half>(read), through_f32 = convert_element<Half>(static_cast<float>(read));
    return std::memcmp(&back, &half, sizeof half) == 0 && std::memcmp(&through_f32, &half, sizeof half) == 0;
  };
  constexpr int enough = 5;  // digits that tell all values of 11 bits apart
  for (int digits = 1; digits <= enough; ++digits) {
    for (const bool other_side : {false, true})
      if (const double some = rounded(exact, digits, other_side); is_same(some)) return some;
    // The far ends of bf16 take more than exact powers.
    char text[longest];
    const char* const end = std::to_chars(text, text + longest, exact, std::chars_format::scientific, digits - 1).ptr;
    double read = 0;
    std::from_chars(text, end, read);
    if (is_same(read)) return read;
  }
  return exact;
}

template <class T>
char* put_element(char* to, const std::byte* at) {
  if constexpr (std::is_same_v<T, bool>) {
    return put_text(to, *at == std::byte{0} ? "false" : "true");
  } else {
    T value;
    std::memcpy(&value, at, sizeof value);
    if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
      const auto single = static_cast<float>(value);
      return single == 0 || !std::isfinite(single) ? put_float(to, single) : put_float(to, shortest(value));
    } else if constexpr (std::is_floating_point_v<T>)
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
