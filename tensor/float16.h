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
  // Both are free of branches, so that loops over them become loops over vectors.
  MILLRACE_HD static constexpr std::uint16_t narrow(std::uint32_t f) {
    constexpr std::uint32_t infinity = 0x7f800000u, overflow = 0x477ff000u, least_normal = 0x38800000u;
    const std::uint32_t sign = (f >> 16) & 0x8000u;
    const std::uint32_t magnitude = f & 0x7fffffffu;
    const std::uint32_t rebased = magnitude - 0x38000000u;
    const std::uint32_t normal = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
    // The last place of 0.5 + x is the least subnormal.
    const std::uint32_t small = magnitude < least_normal ? magnitude : least_normal;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(small) + 0.5f) - std::bit_cast<std::uint32_t>(0.5f);
    const std::uint32_t finite = magnitude < least_normal ? subnormal : normal;
    const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x1ffu);  // stays quiet
    const std::uint32_t special = magnitude > infinity ? nan : 0x7c00u;
    return static_cast<std::uint16_t>(sign | (magnitude < overflow ? finite : special));
  }
  MILLRACE_HD static constexpr std::uint32_t widen(std::uint16_t h) {
    const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
    const std::uint32_t magnitude = h & 0x7fffu;
    const std::uint32_t placed = magnitude << 13;  // the number less 112 in its exponent
    // The last place of 0.5 + x is the least subnormal. No operand is a subnormal of f32, which kernels take as zero.
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude + 0x3f000000u) - 0.5f);
    const std::uint32_t finite = magnitude < 0x400u ? subnormal : placed + 0x38000000u;
    return sign | (magnitude < 0x7c00u ? finite : placed | 0x7f800000u);
  }
};

}  // namespace millrace
