// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::lac {

/// A line as the tagger sees it: without white space around it, one code point of UTF-8 an element.
struct Characters {
  std::vector<std::string> all;
  /// Where the first byte is that is no UTF-8, if one is. Each ill-formed piece stands in `all` as U+FFFD.
  std::optional<std::size_t> broken_at;
};

/// White space is Unicode's, as in Python's str.strip(). A byte order mark in front of the line goes away too.
Characters characters_of(std::string_view line);

}  // namespace millrace::lac
