// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace::training::internal {

/// A number for a name, by which its random numbers are keyed: FNV-1a, 64 bits.
inline std::uint64_t key_of(std::string_view name) {
  std::uint64_t key = 0xcbf29ce484222325u;
  for (const char c : name) key = (key ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return key;
}

}  // namespace millrace::training::internal
