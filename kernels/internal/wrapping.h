// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::internal {

/// a + b·c of 32 bits, which wraps.
inline std::int32_t wrapping_add(std::int32_t a, std::int32_t b, std::int32_t c = 1) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b) * static_cast<std::uint32_t>(c));
}
/// a − b·c.
inline std::int32_t wrapping_sub(std::int32_t a, std::int32_t b, std::int32_t c = 1) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) - static_cast<std::uint32_t>(b) * static_cast<std::uint32_t>(c));
}

}  // namespace millrace::internal
