// SPDX-License-Identifier: Apache-2.0
#include <lac_tagger/library/text.h>

#include <algorithm>
#include <array>

#include <millrace/runtime/files/utf8.h>

namespace millrace::lac {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD", byte_order_mark = "\xEF\xBB\xBF";

/// Beside those of ASCII. Source: Unicode, White_Space.
constexpr std::array<std::string_view, 19> wide_spaces = {"\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
                                                          "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
                                                          "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
                                                          "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};

bool is_space(const std::string& character) {
  if (character.size() > 1) return std::find(wide_spaces.begin(), wide_spaces.end(), character) != wide_spaces.end();
  const char c = character[0];
  return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f');
}

/// Bytes of the code point that begins here, 0 where none does.
std::size_t length_of(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return length <= text.size() && is_utf8(text.substr(0, length)) ? length : 0;
}

}  // namespace

Characters characters_of(std::string_view line) {
  Characters made;
  const std::size_t mark = line.starts_with(byte_order_mark) ? byte_order_mark.size() : 0;
  bool inside_broken = false;
  for (std::size_t at = mark; at < line.size();) {
    const std::size_t length = length_of(line.substr(at));
    if (length == 0) {
      if (!made.broken_at) made.broken_at = at;
      // Bytes that only continue something belong to the piece that is broken already.
      const bool continues = (static_cast<unsigned char>(line[at]) & 0xC0) == 0x80;
      if (!inside_broken || !continues) made.all.emplace_back(replacement);
      inside_broken = true;
      ++at;
      continue;
    }
    inside_broken = false;
    made.all.emplace_back(line.substr(at, length));
    at += length;
  }
  const auto first = std::find_if_not(made.all.begin(), made.all.end(), is_space);
  const auto last = std::find_if_not(made.all.rbegin(), std::make_reverse_iterator(first), is_space).base();
  made.all = std::vector<std::string>(first, last);
  return made;
}

}  // namespace millrace::lac
