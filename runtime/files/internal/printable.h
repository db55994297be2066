// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace millrace::internal {

/// A name out of a file as it may stand in an error of one line: quoted, at most 120 bytes, control characters as '?'.
inline std::string printable(std::string_view name) {
  std::string text = "'";
  for (const char c : name.substr(0, 120)) text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return text + (name.size() > 120 ? "…'" : "'");
}

}  // namespace millrace::internal
