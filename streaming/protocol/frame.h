// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include <millrace/streaming/protocol/message.h>

namespace millrace {

/// A TCP frame: u32 little-endian length of the payload, u8 kind ('J' or 'B'), payload.
inline constexpr std::size_t frame_head_bytes = 5;

/// The head of the frame that carries `message`. ArgumentError above 2^32 − 1 bytes.
std::array<std::byte, frame_head_bytes> frame_head(const Message& message);
/// Head and payload in one piece.
std::string encode_frame(const Message& message);

/// Frames out of bytes that arrive in pieces cut anywhere; no I/O. Not thread-safe.
///
/// A length above `max_payload`, or a kind that is neither 'J' nor 'B', is a ProtocolError (too_big, bad_message) as soon as its head is
/// there, and so is memory that runs out (overload); the decoder then refuses everything after. Nothing is allocated from a declared length before as many bytes arrived.
class FrameDecoder {
 public:
  explicit FrameDecoder(std::size_t max_payload) : max_payload_(max_payload) {}

  /// Takes bytes up to the end of one frame, and returns how many it took: all of them, or those up to the end of the frame that
  /// `take` then gives. Feed the rest after `take`.
  std::size_t feed(std::span<const std::byte> bytes);
  /// The frame that is complete, once.
  std::optional<Message> take();
  /// Sets the limits of the frames from the next one on. A text frame may hold `max_text`, where that is less.
  void limit(std::size_t max_payload, std::size_t max_text) noexcept {
    max_payload_ = max_payload;
    max_text_ = max_text;
  }
  /// Whether bytes of an unfinished frame are held: an end of the stream here cuts a frame.
  bool mid_frame() const noexcept { return head_size_ > 0; }

 private:
  void append(std::span<const std::byte> part);
  void read_head();

  std::size_t max_payload_;
  std::size_t max_text_ = std::numeric_limits<std::size_t>::max();
  std::array<std::byte, frame_head_bytes> head_{};
  std::size_t head_size_ = 0;
  std::size_t length_ = 0;
  bool complete_ = false;
  bool broken_ = false;
  Message message_;
};

}  // namespace millrace
