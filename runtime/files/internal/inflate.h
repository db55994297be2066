// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace::internal {

/// `size` bytes out of a raw deflate stream (RFC 1951) that must give exactly so many and end with `bytes`. ParseError opens with `where`.
/// UnsupportedError in a build without the part zlib. The caller has compared `size` with the bytes.
std::string inflate(std::string_view bytes, std::size_t size, const std::string& where);

}  // namespace millrace::internal
