// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::internal {

/// The words, quoted strings and single punctuation marks of a program's text, one ahead. Other text is a ParseError that begins
/// with "program text, line N".
class Tokens {
 public:
  /// `text` must outlive this.
  explicit Tokens(std::string_view text) : text_(text) { next(); }

  const std::string& peek() const { return token_; }
  bool at_word() const;
  bool at_string() const { return is_string_; }
  bool at_end() const { return at_end_; }
  /// The line of the token that comes next.
  int line() const { return line_; }

  std::string take();
  bool accept(std::string_view token);
  void expect(std::string_view token);
  std::string word();
  std::string string();
  /// A whole number from `least` to `most`.
  std::int64_t integer(std::int64_t least, std::int64_t most);
  [[noreturn]] void fail(const std::string& expected) const;

 private:
  void next();
  void read_string();
  char escaped();
  [[noreturn]] void fail_in_string(const std::string& expected) const;

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::string token_;
  bool is_string_ = false;
  bool at_end_ = false;
};

}  // namespace millrace::internal
