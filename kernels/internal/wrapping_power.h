// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::internal {

/// base to the power of `exponent`, in arithmetic of 64 bits that wraps: of whole numbers of any type, on every place.
constexpr std::uint64_t wrapping_power(std::uint64_t base, std::uint64_t exponent) {
  std::uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1, base *= base)
    if ((exponent & 1) != 0) result *= base;
  return result;
}

}  // namespace millrace::internal
