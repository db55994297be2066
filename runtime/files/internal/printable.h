// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include <millrace/runtime/files/utf8.h>

namespace millrace::internal {

/// A name out of a file as it may stand in an error of one line: quoted, at most 120 of its bytes, control characters as '?', bytes that are no UTF-8 as
/// `\xff`.
inline std::string printable(std::string_view name) {
  constexpr std::size_t most = 120;
  std::string text = "'";
  std::size_t at = 0;
  while (at < std::min(name.size(), most)) {
    const std::size_t length = utf8_length(name.substr(at));
    const std::string_view letter = name.substr(at, std::max<std::size_t>(1, length));
    if (at + letter.size() > most) break;
    const auto first = static_cast<unsigned char>(letter[0]);
    if (length == 0)
      text += {'\\', 'x', "0123456789abcdef"[first >> 4], "0123456789abcdef"[first & 15]};
    else
      text += first < 0x20 || first == 0x7f || (letter >= "\xc2\x80" && letter < "\xc2\xa0") ? "?" : letter;
    at += letter.size();
  }
  return text + (at < name.size() ? "…'" : "'");
}

}  // namespace millrace::internal
