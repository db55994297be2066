// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include <millrace/tensor/host_device.h>

namespace millrace {

/// The upper half of an f32, a storage type: arithmetic happens in f32. Narrowing rounds to nearest, ties to even.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  MILLRACE_HD explicit constexpr bfloat16(float value) : bits(narrow(std::bit_cast<std::uint32_t>(value))) {}
  MILLRACE_HD constexpr explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  static constexpr bfloat16 from_bits(std::uint16_t bits) {
    bfloat16 made;
    made.bits = bits;
    return made;
  }

  friend constexpr bool operator==(bfloat16 a, bfloat16 b) { return static_cast<float>(a) == static_cast<float>(b); }

 private:
  MILLRACE_HD static constexpr std::uint16_t narrow(std::uint32_t f) {
    if ((f & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((f >> 16) | 0x40u);  // NaN stays quiet
    return static_cast<std::uint16_t>((f + 0x7fffu + ((f >> 16) & 1u)) >> 16);
  }
};

}  // namespace millrace
