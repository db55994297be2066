// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <type_traits>

#include <millrace/kernels/cpu/convert_kernels.h>
#include <millrace/tensor/dtype.h>

namespace millrace::cpu {

/// Whether elements of one type are those of 16 bits and those of the other f32.
template <class From, class To>
inline constexpr bool is_half_and_float = (std::is_same_v<From, float> && (std::is_same_v<To, float16> || std::is_same_v<To, bfloat16>)) ||
                                          (std::is_same_v<To, float> && (std::is_same_v<From, float16> || std::is_same_v<From, bfloat16>));

/// `count` elements in another dtype, each by `convert_element`; steps are in elements.
template <class From, class To>
void convert_run(const From* from, std::int64_t from_step, To* to, std::int64_t to_step, std::int64_t count) {
  if constexpr (is_half_and_float<From, To>)
    if (from_step == 1 && to_step == 1) return convert_side_by_side(from, to, count);
  if (from_step == 1 && to_step == 1) {  // a loop over vectors
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert_element<To>(from[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = convert_element<To>(from[i * from_step]);
  }
}

}  // namespace millrace::cpu
