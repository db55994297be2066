// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/base64.h>

#include <algorithm>
#include <cstdint>

#include <millrace/tensor/error.h>

namespace millrace {
namespace {

constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::uint32_t value_of(char letter) {
  const std::size_t at = letters.find(letter);
  if (at == letters.npos) throw ParseError("base64: expected letters, digits, + and /, found another character");
  return static_cast<std::uint32_t>(at);
}

}  // namespace

std::string base64(std::string_view bytes) {
  std::string text;
  text.reserve(base64_size(bytes.size()));
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 3; ++i) group = group << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (std::size_t i = 0; i < 4; ++i) text += i <= count ? letters[group >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

std::string from_base64(std::string_view text) {
  if (text.size() % 4 != 0) throw ParseError("base64: expected a multiple of 4 letters, found " + std::to_string(text.size()));
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += 4) {
    std::string_view group = text.substr(at, 4);
    if (at + 4 == text.size())
      for (int padding = 0; padding < 2 && group.ends_with('='); ++padding) group.remove_suffix(1);
    std::uint32_t value = 0;
    for (const char letter : group) value = value << 6 | value_of(letter);
    value <<= 6 * (4 - group.size());
    const std::size_t count = group.size() - 1;
    for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>(value >> (16 - 8 * i) & 255);
    if ((value & ((1u << (24 - 8 * count)) - 1)) != 0) throw ParseError("base64: expected no bits behind the last byte, found some");
  }
  return bytes;
}

}  // namespace millrace
