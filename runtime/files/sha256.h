// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

/// SHA-256 of bytes as 64 small hexadecimal digits. Source: FIPS PUB 180-4, section 6.2. For noticing damage, not for secrets.
std::string sha256(std::string_view bytes);

}  // namespace millrace
