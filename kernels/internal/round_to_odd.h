// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include <millrace/tensor/host_device.h>

namespace millrace::internal {

/// An integer as f32, rounded to odd where it is no f32: narrowed to f16 or bf16 from there, it is rounded once.
template <class Integer>
MILLRACE_HD constexpr float round_to_odd(Integer value) {
  const auto nearest = static_cast<float>(value);
  constexpr float behind = -2.0f * static_cast<float>(std::numeric_limits<Integer>::min() / 2);  // no Integer itself
  const bool above = nearest >= behind || static_cast<Integer>(nearest) > value;
  const bool below = !above && static_cast<Integer>(nearest) < value;
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  if ((!above && !below) || (bits & 1u) != 0) return nearest;
  return std::bit_cast<float>((nearest < 0) == above ? bits + 1 : bits - 1);  // the neighbour on the side of `value`
}

}  // namespace millrace::internal
