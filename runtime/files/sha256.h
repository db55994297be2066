// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

/// SHA-256 of bytes that come in parts. Source: FIPS PUB 180-4, section 6.2. For noticing damage, not for secrets. Not thread-safe.
///
///     Sha256 hash;
///     hash.add("ab");
///     hash.add("c");
///     hash.digits();  // those of "abc"
class Sha256 {
 public:
  void add(std::string_view bytes);
  /// 64 small hexadecimal digits, of the bytes so far. More bytes may follow.
  std::string digits() const;

 private:
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> rest_{};  // bytes that are no whole block yet
  std::size_t held_ = 0;                  // of rest_
  std::uint64_t bytes_ = 0;
};

/// The digits of the hash of these bytes.
std::string sha256(std::string_view bytes);

}  // namespace millrace
