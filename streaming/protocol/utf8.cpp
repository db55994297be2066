// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/utf8.h>

#include <cstddef>
#include <cstdint>

namespace millrace {

bool is_utf8(std::string_view text) noexcept {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto lead = static_cast<std::uint8_t>(text[at++]);
    if (lead < 0x80) continue;
    const int follow = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - at < static_cast<std::size_t>(follow)) return false;
    std::uint32_t point = lead & (0x3fu >> follow);
    for (int k = 0; k < follow; ++k) {
      const auto next = static_cast<std::uint8_t>(text[at++]);
      if ((next & 0xc0) != 0x80) return false;
      point = point << 6 | (next & 0x3fu);
    }
    // The least code point of a form of this length: anything below is overlong.
    const std::uint32_t least = follow == 3 ? 0x10000 : follow == 2 ? 0x800 : 0x80;
    if (point < least || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) return false;
  }
  return true;
}

}  // namespace millrace
