// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/cast.h>

#include <limits>
#include <type_traits>

#include <millrace/kernels/cpu/convert_run.h>
#include <millrace/kernels/cpu/each_element.h>
#include <millrace/kernels/internal/round_to_odd.h>

namespace millrace::cpu {
namespace {

/// C++ leaves a float outside the integer's range undefined; here it clamps, and NaN is 0.
template <class To>
To to_integer(double value) {
  if (value != value) return 0;
  // The greatest value may not be a double: compare with the power of two behind it.
  constexpr double behind = 2.0 * static_cast<double>(std::numeric_limits<To>::max() / 2 + 1);
  if (value >= behind) return std::numeric_limits<To>::max();
  if (value <= static_cast<double>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  return static_cast<To>(value);
}

template <class To, class From>
To cast_one(From value) {
  constexpr bool from_float = !std::is_integral_v<From>;
  if constexpr (from_float && std::is_integral_v<To> && !std::is_same_v<To, bool>) {
    return to_integer<To>(convert_element<double>(value));
  } else if constexpr (from_float && std::is_same_v<To, bool>) {
    return convert_element<double>(value) != 0.0;
  } else if constexpr ((std::is_same_v<From, std::int64_t> || std::is_same_v<From, std::int32_t>) && sizeof(To) == 2) {
    return To(internal::round_to_odd(value));
  } else {
    return convert_element<To>(value);
  }
}

/// The conversion of `convert_element`, as `cast_one` has it, too.
template <class From, class To>
void half_and_float(const Tensor& x, const Tensor& out, ThreadTeam& team) {
  const StridedLoop<2> loop(x.dims(), {&x.strides(), &out.strides()});
  const From* from = static_cast<const From*>(x.raw());
  To* to = static_cast<To*>(out.raw_mutable());
  const auto [from_step, to_step] = loop.inner();
  loop.parallel(team, grain_light, [&](const auto& offsets, std::int64_t count) {
    convert_run(from + offsets[0], from_step, to + offsets[1], to_step, count);
  });
}

}  // namespace

void cast(const Tensor& x, const Tensor& out, ThreadTeam& team) {
  visit_dtype(x.dtype(), [&](auto from) {
    visit_dtype(out.dtype(), [&](auto to) {
      using From = typename decltype(from)::type;
      using To = typename decltype(to)::type;
      if constexpr (is_half_and_float<From, To>)
        return half_and_float<From, To>(x, out, team);
      else
        return each_element<From, To>(x, out, team, [](auto value) { return cast_one<To>(value); });
    });
  });
}

}  // namespace millrace::cpu
