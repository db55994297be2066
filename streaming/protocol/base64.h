// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

/// Bytes as letters that JSON holds unchanged. Source: RFC 4648, section 4, with padding.
std::string base64(std::string_view bytes);
/// The bytes of such letters. ParseError: a letter outside the alphabet, missing padding, bits that no byte has. So each text stands for one
/// string of bytes, and each string of bytes has one text.
std::string from_base64(std::string_view text);
/// Letters that `bytes` bytes take.
constexpr std::size_t base64_size(std::size_t bytes) noexcept { return (bytes + 2) / 3 * 4; }

}  // namespace millrace
