// SPDX-License-Identifier: Apache-2.0
#include <service_soak/talk.h>

#include <cstdint>
#include <cstdlib>
#include <utility>

#include <millrace/streaming/protocol/auth.h>

namespace millrace::simulated {
namespace {

constexpr unsigned text_frame = 1, binary_frame = 2, close_frame = 8, ping_frame = 9, pong_frame = 10, last = 0x80;
constexpr std::size_t longest_reply = std::size_t{1} << 20;

}  // namespace

Talk::Talk(bool web, std::string token, testing::Random& random)
    : web_(web), token_(std::move(token)), random_(random), decoder_(longest_reply) {}

std::string Talk::begin() {
  if (!web_) return token_.empty() ? std::string() : encode_frame(text_message(to_json(AuthMessage{token_})));
  std::string request =
      "GET /stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
  if (!token_.empty() && random_.coin())
    request += "Authorization: Bearer " + token_ + "\r\n";
  else if (!token_.empty())
    request += "Sec-WebSocket-Protocol: millrace.v1, bearer." + token_ + "\r\n";
  return request + "\r\n";
}

std::string Talk::say(const Message& message) {
  if (!web_) return encode_frame(message);
  if (open_) return frames_of(message);
  waiting_ += frames_of(message);
  return {};
}

std::string Talk::frame(unsigned first, std::string_view payload) {
  std::string bytes(1, static_cast<char>(first));
  constexpr std::size_t short_length = 126, middle = 65536;
  const auto size = payload.size();
  const int length_bytes = size < short_length ? 0 : size < middle ? 2 : 8;
  bytes += static_cast<char>(0x80u | (length_bytes == 0 ? size : length_bytes == 2 ? short_length : short_length + 1));
  for (int i = length_bytes - 1; i >= 0; --i) bytes += static_cast<char>(size >> (8 * i));
  std::string mask;
  for (int i = 0; i < 4; ++i) mask += static_cast<char>(random_.between(0, 255));
  bytes += mask;
  for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>(payload[i] ^ mask[i % 4]);
  return bytes;
}

std::string Talk::frames_of(const Message& message) {
  const unsigned kind = message.kind == MessageKind::text ? text_frame : binary_frame;
  const std::string_view payload = message.payload;
  if (random_.between(1, 4) > 1) return frame(kind | last, payload);
  const auto cut = static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(payload.size())));
  std::string bytes = frame(kind, payload.substr(0, cut));
  if (random_.coin()) bytes += frame(ping_frame | last, "are you there");
  return bytes + frame(last, payload.substr(cut));
}

std::vector<Message> Talk::hear(std::string_view bytes, std::string& answer) {
  std::vector<Message> messages;
  if (!web_) {
    auto left = std::as_bytes(std::span<const char>(bytes));
    while (!left.empty()) {
      left = left.subspan(decoder_.feed(left));
      while (auto message = decoder_.take()) messages.push_back(*std::move(message));
    }
    return messages;
  }
  bytes_ += bytes;
  if (!open_ && take_head()) answer += std::exchange(waiting_, {});
  while (open_ && take_frame(messages, answer)) {
  }
  return messages;
}

/// The answer to the request, once it is whole.
bool Talk::take_head() {
  const auto end = bytes_.find("\r\n\r\n");
  if (end == bytes_.npos || refused_with_ != 0) return false;
  constexpr std::size_t status = std::string_view("HTTP/1.1 ").size();
  const int code = std::atoi(bytes_.c_str() + status);
  open_ = code == 101;
  if (!open_) refused_with_ = code;
  bytes_.erase(0, end + 4);
  return open_;
}

bool Talk::take_frame(std::vector<Message>& messages, std::string& answer) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes_[i]); };
  if (bytes_.size() < 2) return false;
  const unsigned kind = at(0) & 15u, shown = at(1) & 0x7fu;
  const std::size_t length_bytes = shown < 126 ? 0 : shown == 126 ? 2 : 8, head = 2 + length_bytes;
  if (bytes_.size() < head) return false;
  std::uint64_t size = length_bytes == 0 ? shown : 0;
  for (std::size_t i = 0; i < length_bytes; ++i) size = size << 8 | at(2 + i);
  if (bytes_.size() < head + size) return false;
  const bool whole = (at(0) & last) != 0;
  std::string payload = bytes_.substr(head, size);
  bytes_.erase(0, head + size);
  if (kind == close_frame && random_.between(1, 4) > 1) answer += frame(close_frame | last, payload);
  if (kind == ping_frame) answer += frame(pong_frame | last, payload);
  if (kind >= close_frame) return true;
  if (kind != 0) message_.kind = kind == text_frame ? MessageKind::text : MessageKind::binary;
  message_.payload += payload;
  if (whole) messages.push_back(std::exchange(message_, {}));
  return true;
}

}  // namespace millrace::simulated
