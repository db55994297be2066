// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/tcp_stream.h>

#include <boost/asio/append.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/protocol/frame.h>
#include <millrace/streaming/transport/internal/completion_executor.h>
#include <millrace/streaming/transport/wire_error.h>

namespace millrace {
namespace {

/// The state that a stream and its pending operations share.
struct Framed {
  Framed(ByteStream carried, std::size_t max_payload) : bytes(std::move(carried)), decoder(max_payload) {}
  /// The bytes that were read, of which the first `count` are good. As many are read next as came now: a peer that says little costs little.
  void arrived(std::size_t count) {
    if (count == size && size < most)
      next = std::min(4 * size, most);
    else if (size > least && count < size / 8)
      next = std::max(size / 4, least);
    unread = {buffer.get(), count};
  }
  asio::mutable_buffer room() {
    next = std::clamp(next, least, most);
    if (size != next) {
      buffer = std::make_unique_for_overwrite<std::byte[]>(next);
      size = next;
    }
    return asio::buffer(buffer.get(), size);
  }

  static constexpr std::size_t least = 1024;
  ByteStream bytes;
  FrameDecoder decoder;
  std::unique_ptr<std::byte[]> buffer{};
  std::size_t size = 0, next = least;  // of buffer, now and when it is read into again
  std::size_t most = 16384;
  std::span<const std::byte> unread{};  // of buffer
};

// Moves bytes that were read into the decoder; the message, if one became complete.
std::optional<Message> decode(Framed& framed, error_code& error) {
  try {
    framed.unread = framed.unread.subspan(framed.decoder.feed(framed.unread));
  } catch (const ProtocolError& broken) {
    error = broken.code();
  }
  return framed.decoder.take();
}

struct ReadOp {
  std::shared_ptr<Framed> framed;

  template <class Self>
  void operator()(Self& self) {
    framed->bytes.async_read_some(framed->room(), std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error, std::size_t count) {
    if (error == asio::error::eof && framed->decoder.mid_frame()) error = asio::error::connection_reset;
    framed->arrived(error ? 0 : count);
    std::optional<Message> message = error ? std::nullopt : decode(*framed, error);
    if (message || error)
      self.complete(error, message ? *std::move(message) : Message());
    else
      (*this)(self);
  }
};

/// A frame on its way out.
struct Outgoing {
  explicit Outgoing(Message moved) : message(std::move(moved)), head(frame_head(message)) {}
  std::array<asio::const_buffer, 2> buffers() const { return {asio::buffer(head), asio::buffer(message.payload)}; }
  Message message;
  std::array<std::byte, frame_head_bytes> head;
};

/// Several, in one piece.
struct Joined {
  explicit Joined(const std::vector<Message>& messages) {
    for (const Message& message : messages) bytes += encode_frame(message);
  }
  std::array<asio::const_buffer, 1> buffers() const { return {asio::buffer(bytes)}; }
  std::string bytes;
};

template <class Frames>
struct WriteOp {
  std::shared_ptr<Framed> framed;
  std::shared_ptr<Frames> outgoing;

  template <class Self>
  void operator()(Self& self) {
    asio::async_write(framed->bytes, outgoing->buffers(), std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error, std::size_t) {
    self.complete(error);
  }
};

class TcpStream final : public MessageStream {
 public:
  TcpStream(ByteStream bytes, std::size_t max_payload) : framed_(std::make_shared<Framed>(std::move(bytes), max_payload)) {}
  ~TcpStream() override { framed_->bytes.close(); }

  executor_type get_executor() override { return framed_->bytes.get_executor(); }
  void limit(std::size_t bytes, std::size_t text_bytes) noexcept override {
    framed_->decoder.limit(bytes, text_bytes);
    framed_->most = std::clamp<std::size_t>(bytes / 4, Framed::least, 16384);
  }
  void abort() noexcept override { framed_->bytes.close(); }
  std::uint16_t peer_close_code() const noexcept override { return 0; }

 protected:
  void read(ReadHandler handler) override {
    error_code error;
    if (std::optional<Message> message = decode(*framed_, error); message || error) {
      // Bytes that an earlier read brought along: the operation completes through the queue, never inside this call.
      asio::post(get_executor(), asio::append(std::move(handler), error, message ? *std::move(message) : Message()));
      return;
    }
    ReadOp op{framed_};
    asio::async_compose<ReadHandler, void(error_code, Message)>(std::move(op), handler, completes_on_);
  }
  void write(Message message, DoneHandler handler) override { write_frames(std::make_shared<Outgoing>(std::move(message)), handler); }
  void write_all(std::vector<Message> messages, DoneHandler handler) override { write_frames(std::make_shared<Joined>(messages), handler); }
  void close(std::uint16_t, DoneHandler handler) override { framed_->bytes.async_shut_down(std::move(handler)); }

 private:
  template <class Frames>
  void write_frames(std::shared_ptr<Frames> frames, DoneHandler& handler) {
    WriteOp<Frames> op{framed_, std::move(frames)};
    asio::async_compose<DoneHandler, void(error_code)>(std::move(op), handler, completes_on_);
  }

  std::shared_ptr<Framed> framed_;
  asio::any_completion_executor completes_on_ = completion_executor(framed_->bytes.get_executor());
};

}  // namespace

std::unique_ptr<MessageStream> make_tcp_stream(ByteStream bytes, std::size_t max_payload) {
  return std::make_unique<TcpStream>(std::move(bytes), max_payload);
}

}  // namespace millrace
