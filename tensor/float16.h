// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include <millrace/tensor/host_device.h>

namespace millrace {

/// IEEE 754 binary16, a storage type: arithmetic happens in f32. Narrowing rounds to nearest, ties to even.
struct float16 {
  std::uint16_t bits = 0;

  float16() = default;
  MILLRACE_HD explicit constexpr float16(float value) : bits(narrow(std::bit_cast<std::uint32_t>(value))) {}
  MILLRACE_HD constexpr explicit operator float() const { return std::bit_cast<float>(widen(bits)); }
  static constexpr float16 from_bits(std::uint16_t bits) {
    float16 made;
    made.bits = bits;
    return made;
  }

  friend constexpr bool operator==(float16 a, float16 b) { return static_cast<float>(a) == static_cast<float>(b); }

 private:
  MILLRACE_HD static constexpr std::uint16_t narrow(std::uint32_t f) {
    const std::uint32_t sign = (f >> 16) & 0x8000u;
    const std::uint32_t magnitude = f & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));  // NaN stays quiet
    if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);                                // rounds to infinity
    if (magnitude >= 0x38800000u) {                                                                                 // a normal result
      const std::uint32_t rebased = magnitude - 0x38000000u;
      return static_cast<std::uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
    }
    if (magnitude < 0x33000000u) return static_cast<std::uint16_t>(sign);  // below half of the least subnormal
    const std::uint32_t shift = 126u - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t kept = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
    const std::uint32_t half = 1u << (shift - 1u);
    const std::uint32_t up = (rest > half || (rest == half && (kept & 1u))) ? 1u : 0u;
    return static_cast<std::uint16_t>(sign | (kept + up));
  }
  MILLRACE_HD static constexpr std::uint32_t widen(std::uint16_t h) {
    const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
    std::uint32_t exponent = (h >> 10) & 0x1fu;
    std::uint32_t mantissa = h & 0x3ffu;
    if (exponent == 0x1fu) return sign | 0x7f800000u | (mantissa << 13);
    if (exponent == 0) {
      if (mantissa == 0) return sign;
      exponent = 113;  // a subnormal: shift until the hidden bit appears
      while (!(mantissa & 0x400u)) {
        mantissa <<= 1;
        --exponent;
      }
      return sign | (exponent << 23) | ((mantissa & 0x3ffu) << 13);
    }
    return sign | ((exponent + 112u) << 23) | (mantissa << 13);
  }
};

}  // namespace millrace
