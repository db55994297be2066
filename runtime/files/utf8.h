// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace millrace {

/// Bytes of the well-formed character at the start of `text`, which is not empty; 0 when it is none: no overlong forms, no surrogates, nothing above
/// U+10FFFF.
std::size_t utf8_length(std::string_view text) noexcept;
/// Whether `text` is UTF-8 as RFC 3629 has it.
bool is_utf8(std::string_view text) noexcept;

}  // namespace millrace
