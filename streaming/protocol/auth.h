// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

/// Client, over plain TCP: the message ahead of `start` for a server that asks for a token.
struct AuthMessage {
  std::string token;
};
/// Bytes that the message may have.
inline constexpr std::size_t most_auth_bytes = 512;

std::string to_json(const AuthMessage& message);
/// ProtocolError: bad_text or bad_message for text that is no `auth`, too_big above `most_auth_bytes`. No error quotes what stood there.
AuthMessage parse_auth_message(std::string_view text);

}  // namespace millrace
