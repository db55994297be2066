// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/internal/json_reader.h>

#include <charconv>

#include <millrace/tensor/error.h>

namespace millrace::internal {
namespace {

void append_utf8(std::string& to, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { to += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xe0 | code >> 12);
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3f));
    }
    put(0x80 | (code >> 6 & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}

}  // namespace

std::string json_quoted(std::string_view text) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') quoted += '\\';
    if (byte < 0x20) {
      quoted += "\\u00";
      quoted += digits[byte >> 4];
      quoted += digits[byte & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

void JsonReader::fail(const std::string& expected) const {
  throw ParseError(where_ + ": expected " + expected + ", at byte " + std::to_string(at_) + " of the header");
}

void JsonReader::blanks() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
}

bool JsonReader::take(char wanted) {
  blanks();
  if (at_ >= text_.size() || text_[at_] != wanted) return false;
  ++at_;
  return true;
}

void JsonReader::expect(char wanted) {
  if (!take(wanted)) fail(std::string("'") + wanted + "'");
}

void JsonReader::enter(char open) {
  expect(open);
  if (++depth_ > max_depth) fail("at most " + std::to_string(max_depth) + " levels");
}

void JsonReader::end() {
  blanks();
  if (at_ != text_.size()) fail("nothing after the object");
}

std::int64_t JsonReader::integer() {
  blanks();
  std::int64_t value = 0;
  const char* begin = text_.data() + at_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  const bool leading_zero = end - begin > 1 && *begin == '0';
  if (error != std::errc() || value < 0 || *begin == '-' || leading_zero) fail("an integer from 0 to 2^63 - 1");
  at_ += static_cast<std::size_t>(end - begin);
  return value;
}

std::string JsonReader::string() {
  expect('"');
  std::string value;
  for (;;) {
    if (at_ >= text_.size()) fail("the end of a string");
    const char c = text_[at_];
    if (c == '"') break;
    if (static_cast<unsigned char>(c) < 0x20) fail("no control character in a string");
    const std::size_t length = utf8_length(text_.substr(at_));
    if (length == 0) fail("UTF-8");
    if (c == '\\') {
      ++at_;
      escape(value);
      continue;
    }
    value += text_.substr(at_, length);
    at_ += length;
  }
  ++at_;
  return value;
}

std::uint32_t JsonReader::hex4() {
  std::uint32_t code = 0;
  const std::string_view digits = text_.substr(at_, 4);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
  if (digits.size() != 4 || error != std::errc() || end != digits.data() + 4) fail("four hexadecimal digits");
  at_ += 4;
  return code;
}

void JsonReader::escape(std::string& to) {
  static constexpr std::string_view names = "\"\\/bfnrt";
  static constexpr std::string_view values = "\"\\/\b\f\n\r\t";
  const char c = at_ < text_.size() ? text_[at_++] : '\0';
  if (const std::size_t index = names.find(c); c != '\0' && index != names.npos) {
    to += values[index];
    return;
  }
  if (c != 'u') fail("an escape of JSON");
  std::uint32_t code = hex4();
  if (code >= 0xd800 && code < 0xdc00) {
    if (text_.substr(at_, 2) != "\\u") fail("the second half of a surrogate pair");
    at_ += 2;
    const std::uint32_t low = hex4();
    if (low < 0xdc00 || low > 0xdfff) fail("the second half of a surrogate pair");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  } else if (code >= 0xdc00 && code < 0xe000) {
    fail("the first half of a surrogate pair");
  }
  append_utf8(to, code);
}

}  // namespace millrace::internal
