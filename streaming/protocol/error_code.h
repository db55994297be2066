// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <millrace/tensor/error.h>

namespace millrace {

/// Why a session ends early. The names and the WebSocket close codes are those of docs/protocol.md.
enum class ErrorCode : std::uint8_t {
  bad_message,     ///< 1002: a frame, a control message or an order of messages that the protocol does not have
  bad_text,        ///< 1007: control text that is not UTF-8
  bad_input,       ///< 1008: inputs, dtypes, shapes, outputs or a version that the served program does not have
  refused,         ///< 1008: a route, an origin or a peer that is not allowed
  idle,            ///< 1008: nothing arrived for too long, or the handshake took too long
  slow_reader,     ///< 1008: replies were not read for too long
  too_big,         ///< 1009: a message above the limit
  failed,          ///< 1011: a step failed; this session cannot go on
  overload,        ///< 1013: no room; `retry_after_ms` says when to come back
  draining,        ///< 1001: the server is going away
  lost,            ///< 1011: the device that the session's state was on is gone; a new session may begin elsewhere
  bad_state,       ///< 1008: a saved state that was cut or changed, or is of another model, version or key; a session that cannot be saved
  unknown_ticket,  ///< 1008: a ticket that no session waits for, or whose session holds less than was asked for
  unknown_model,   ///< 1008: a model that the server does not have; the message names those that it has
};

/// "bad_message", …
std::string_view name_of(ErrorCode code);
std::optional<ErrorCode> error_code_named(std::string_view name);
/// The WebSocket close code, as in the table above.
std::uint16_t close_code_of(ErrorCode code);
/// The close code of a session that ended as it should.
inline constexpr std::uint16_t close_code_normal = 1000;

/// Bytes, text or a request that the protocol refuses. `code()` is what the peer is told; `what()` holds no path, pointer or foreign id.
class ProtocolError : public ParseError {
 public:
  explicit ProtocolError(ErrorCode code, const std::string& what, std::optional<std::uint32_t> retry_after_ms = {})
      : ParseError(what), code_(code), retry_after_ms_(retry_after_ms) {}
  ErrorCode code() const noexcept { return code_; }
  /// When to come back, where that helps.
  std::optional<std::uint32_t> retry_after_ms() const noexcept { return retry_after_ms_; }

 private:
  ErrorCode code_;
  std::optional<std::uint32_t> retry_after_ms_;
};

}  // namespace millrace
