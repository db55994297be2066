// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/frame.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include <millrace/streaming/protocol/error_code.h>
#include <millrace/streaming/protocol/little_endian.h>

namespace millrace {

std::array<std::byte, frame_head_bytes> frame_head(const Message& message) {
  if (message.payload.size() > std::numeric_limits<std::uint32_t>::max())
    throw ArgumentError("frame: expected a payload below 4 GiB, found " + std::to_string(message.payload.size()) + " bytes");
  const auto length = static_cast<std::uint32_t>(message.payload.size());
  std::array<std::byte, frame_head_bytes> head;
  std::memcpy(head.data(), &length, sizeof length);
  head[4] = static_cast<std::byte>(message.kind);
  return head;
}

std::string encode_frame(const Message& message) {
  const auto head = frame_head(message);
  std::string frame(reinterpret_cast<const char*>(head.data()), head.size());
  return frame += message.payload;
}

std::size_t FrameDecoder::feed(std::span<const std::byte> bytes) {
  if (broken_) throw ProtocolError(ErrorCode::bad_message, "frame: nothing can be read after a bad frame");
  std::size_t taken = 0;
  while (!complete_ && taken < bytes.size()) {
    const std::size_t left = bytes.size() - taken;
    if (head_size_ < head_.size()) {
      const std::size_t part = std::min(left, head_.size() - head_size_);
      std::memcpy(head_.data() + head_size_, bytes.data() + taken, part);
      head_size_ += part;
      taken += part;
      if (head_size_ == head_.size()) read_head();
    } else {
      const std::size_t part = std::min(left, length_ - message_.payload.size());
      append(bytes.subspan(taken, part));
      taken += part;
    }
    complete_ = head_size_ == head_.size() && message_.payload.size() == length_;
  }
  return taken;
}

void FrameDecoder::append(std::span<const std::byte> part) {
  try {
    message_.payload.append(reinterpret_cast<const char*>(part.data()), part.size());
  } catch (const std::bad_alloc&) {
    broken_ = true;
    message_ = Message();
    throw ProtocolError(ErrorCode::overload, "frame: no memory is left for " + std::to_string(length_) + " bytes");
  }
}

void FrameDecoder::read_head() {
  length_ = read_little_endian<std::uint32_t>(head_.data());
  const auto kind = static_cast<MessageKind>(head_[4]);
  broken_ = true;
  const std::size_t most = kind == MessageKind::text ? std::min(max_payload_, max_text_) : max_payload_;
  if (length_ > most)
    throw ProtocolError(ErrorCode::too_big,
                        "frame: expected at most " + std::to_string(most) + " bytes, found a length of " + std::to_string(length_));
  if (kind != MessageKind::text && kind != MessageKind::binary)
    throw ProtocolError(ErrorCode::bad_message,
                        "frame: expected the kind 'J' or 'B', found the byte " + std::to_string(static_cast<unsigned>(head_[4])));
  broken_ = false;
  message_.kind = kind;
}

std::optional<Message> FrameDecoder::take() {
  if (!complete_) return std::nullopt;
  complete_ = false;
  head_size_ = 0;
  return std::exchange(message_, Message());
}

}  // namespace millrace
