// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::testing {

/// A number as it lies in a little-endian file.
template <class T>
std::string bytes_of(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

inline std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

/// A serialised LoDTensor as Fluid writes it.
inline std::string fluid_bytes(std::uint64_t type, const std::vector<std::int64_t>& extents, const std::string& elements,
                               const std::vector<std::vector<std::uint64_t>>& lod = {}, bool packed = false) {
  std::string description = "\x08" + varint(type), dims;
  for (const std::int64_t extent : extents) dims += (packed ? "" : "\x10") + varint(static_cast<std::uint64_t>(extent));
  description += packed ? "\x12" + varint(dims.size()) + dims : dims;
  std::string file = bytes_of<std::uint32_t>(0) + bytes_of<std::uint64_t>(lod.size());
  for (const auto& level : lod) {
    file += bytes_of<std::uint64_t>(level.size() * sizeof(std::uint64_t));
    for (const std::uint64_t offset : level) file += bytes_of(offset);
  }
  return file + bytes_of<std::uint32_t>(0) + bytes_of(static_cast<std::int32_t>(description.size())) + description + elements;
}

}  // namespace millrace::testing
