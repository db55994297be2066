// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace millrace {

/// The secret by which servers know the states that they gave away (HMAC-SHA256, RFC 2104). Servers that share a key take each other's states.
/// Immutable; thread-safe. All members but the destructor throw UnsupportedError without the part openssl.
class StateKey {
 public:
  static constexpr std::size_t least_bytes = 32, most_bytes = 4096, mac_bytes = 32;
  using Mac = std::array<char, mac_bytes>;

  /// ArgumentError for a secret of fewer than 32 or more than 4,096 bytes.
  explicit StateKey(std::string secret);
  /// A secret that nobody else has.
  static StateKey random();
  /// The bytes of a file, less the line ends behind them. IoError, ArgumentError as above: neither quotes the secret.
  static StateKey read(const std::filesystem::path& path);

  Mac sign(std::string_view bytes) const;
  /// Whether `mac` is that of `bytes`, in a time that does not depend on how much of it is right.
  bool verify(std::string_view bytes, std::string_view mac) const;

 private:
  std::string secret_;
};

}  // namespace millrace
