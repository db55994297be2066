// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/program/internal/tokens.h>
#include <millrace/tensor/error.h>

namespace millrace::internal {
namespace {

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '/' || c == '-' ||
         c == '+';
}

}  // namespace

bool Tokens::at_word() const { return !at_end_ && !is_string_ && is_word(token_[0]); }

std::string Tokens::take() {
  std::string taken = std::move(token_);
  next();
  return taken;
}

bool Tokens::accept(std::string_view token) {
  if (at_end_ || is_string_ || token_ != token) return false;
  next();
  return true;
}

void Tokens::expect(std::string_view token) {
  if (!accept(token)) fail(fmt::format("'{}'", token));
}

std::string Tokens::word() {
  if (!at_word()) fail("a name");
  return take();
}

std::string Tokens::string() {
  if (!is_string_) fail("a quoted string");
  return take();
}

std::int64_t Tokens::integer(std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(token_.data(), token_.data() + token_.size(), value);
  const bool whole = !at_end_ && !is_string_ && error == std::errc{} && end == token_.data() + token_.size();
  if (!whole || value < least || value > most) fail(fmt::format("an integer from {} to {}", least, most));
  next();
  return value;
}

void Tokens::fail(const std::string& expected) const {
  throw ParseError(fmt::format("program text, line {}: expected {}, found {}", line_, expected, at_end_ ? "the end" : printable(token_)));
}

void Tokens::fail_in_string(const std::string& expected) const {
  throw ParseError(fmt::format("program text, line {}: expected {}", line_, expected));
}

void Tokens::next() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
    line_ += text_[at_++] == '\n';
  token_.clear();
  is_string_ = false;
  at_end_ = at_ >= text_.size();
  if (at_end_) return;
  if (text_[at_] == '"') return read_string();
  do token_ += text_[at_++];
  while (is_word(token_[0]) && at_ < text_.size() && is_word(text_[at_]));
}

void Tokens::read_string() {
  is_string_ = true;
  for (++at_; at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n'; ++at_) token_ += text_[at_] == '\\' ? escaped() : text_[at_];
  if (at_ >= text_.size() || text_[at_] != '"') fail_in_string("the end of a quoted string");
  ++at_;
}

/// Leaves `at_` on the last character of the escape.
char Tokens::escaped() {
  const char kind = ++at_ < text_.size() ? text_[at_] : '\n';
  if (kind == '"' || kind == '\\') return kind;
  if (kind == 'n') return '\n';
  unsigned value = 0;
  const std::string_view digits = text_.substr(std::min(at_ + 1, text_.size()), 2);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (kind != 'x' || digits.size() != 2 || error != std::errc{} || end != digits.data() + 2)
    fail_in_string("\\\\, \\\", \\n or \\x with two hexadecimal digits in a quoted string");
  at_ += 2;
  return static_cast<char>(value);
}

}  // namespace millrace::internal
