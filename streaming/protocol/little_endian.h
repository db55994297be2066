// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

namespace millrace {

static_assert(std::endian::native == std::endian::little, "rows travel in the byte order of the machine");

/// Appends the bytes of `value`, little-endian.
template <std::unsigned_integral T>
void append_little_endian(std::string& to, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  to.append(bytes, sizeof(T));
}

/// The T at `at`, which holds that many bytes.
template <std::unsigned_integral T>
T read_little_endian(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

}  // namespace millrace
