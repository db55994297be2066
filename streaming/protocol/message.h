// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace millrace {

/// The two kinds of message, whatever carries them: a WebSocket text or binary frame, a TCP frame of kind 'J' or 'B'.
enum class MessageKind : std::uint8_t { text = 'J', binary = 'B' };

/// One message: JSON text (control) or bytes (data).
struct Message {
  MessageKind kind = MessageKind::text;
  std::string payload;

  Message() = default;
  Message(MessageKind kind_of, std::string bytes_of) : kind(kind_of), payload(std::move(bytes_of)) {}

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span<const char>(payload)); }
  friend bool operator==(const Message&, const Message&) = default;
};

inline Message text_message(std::string payload) { return Message(MessageKind::text, std::move(payload)); }
inline Message binary_message(std::string payload) { return Message(MessageKind::binary, std::move(payload)); }

}  // namespace millrace
