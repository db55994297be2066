// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <boost/system/error_code.hpp>

#include <millrace/streaming/protocol/error_code.h>

namespace millrace {

/// The category of error codes that carry an ErrorCode, as transports give them; `message` says in words what the peer did.
const boost::system::error_category& wire_category() noexcept;

inline boost::system::error_code make_error_code(ErrorCode code) noexcept { return {static_cast<int>(code) + 1, wire_category()}; }

/// The ErrorCode that `error` carries, if it is of `wire_category`: the peer broke the protocol, and may be told so. Anything else is the
/// network.
std::optional<ErrorCode> wire_error(const boost::system::error_code& error) noexcept;

}  // namespace millrace

template <>
struct boost::system::is_error_code_enum<millrace::ErrorCode> : std::true_type {};
