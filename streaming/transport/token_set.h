// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// The tokens that a server knows. A token is 16 to 128 characters of A-Z a-z 0-9 - . _ ~, so that it may stand in any header. Not thread-safe.
class TokenSet {
 public:
  static constexpr std::size_t least_characters = 16, most_characters = 128;

  /// `file`: a token a line; empty lines and lines that begin with # are skipped. IoError; ParseError names file and line, and quotes no token.
  explicit TokenSet(std::string file);
  /// The tokens that are given. ArgumentError for none, and for text that is no token, which it does not quote.
  static TokenSet of(const std::vector<std::string>& tokens);
  /// Reads the file again, where there is one; the tokens in force stay where this throws, with the constructor's errors.
  void reload();

  /// Whether it is one of the tokens. The time that this takes depends on their number alone.
  bool holds(std::string_view token) const noexcept;
  std::size_t size() const noexcept { return tokens_.size(); }

 private:
  /// Zeros follow the characters: all are compared whole.
  using Padded = std::array<std::uint8_t, most_characters>;
  static Padded padded(std::string_view token) noexcept;
  TokenSet() = default;

  std::string file_;
  std::vector<Padded> tokens_;
};

/// Whether text has the form of a token.
bool is_token(std::string_view text) noexcept;

/// The first token of a file such as TokenSet reads: what a client shows. TokenSet's errors.
std::string read_token(const std::string& file);

}  // namespace millrace
