// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/transport/byte_stream.h>

#include <boost/asio/append.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <array>
#include <chrono>

namespace millrace {
namespace {

using asio::ip::tcp;

/// A socket and the timer of its shutdown, shared with the operations that are pending.
struct Socket {
  explicit Socket(tcp::socket connected) : socket(std::move(connected)), timer(socket.get_executor()) {}
  tcp::socket socket;
  asio::steady_timer timer;
};

/// Reads and drops until the peer ends, or the timer closed the socket.
struct Drain {
  std::shared_ptr<Socket> shared;
  std::shared_ptr<std::array<char, 4096>> scratch = std::make_shared<std::array<char, 4096>>();

  template <class Self>
  void operator()(Self& self, error_code error = {}, std::size_t = 0) {
    if (!error) {
      shared->socket.async_read_some(asio::buffer(*scratch), std::move(self));
      return;
    }
    shared->timer.cancel();
    error_code ignored;
    shared->socket.close(ignored);
    // The peer's end, or the timer: either way the stream is closed, as was asked.
    self.complete(error_code());
  }
};

class SocketCarrier final : public ByteStream::Carrier {
 public:
  SocketCarrier(tcp::socket socket, std::string first) : shared_(std::make_shared<Socket>(std::move(socket))), first_(std::move(first)) {
    error_code ignored;  // a peer that is gone already is found by the first read
    shared_->socket.set_option(tcp::no_delay(true), ignored);
  }
  ~SocketCarrier() override { close(); }

  ByteStream::executor_type executor() override { return shared_->socket.get_executor(); }

  void read_some(const ReadBuffers& buffers, ByteStream::TransferHandler handler) override {
    if (first_.empty()) {
      shared_->socket.async_read_some(buffers, std::move(handler));
      return;
    }
    const std::size_t count = asio::buffer_copy(buffers, asio::buffer(first_));
    first_.erase(0, count);
    asio::post(executor(), asio::append(std::move(handler), error_code(), count));
  }

  void write_some(const WriteBuffers& buffers, ByteStream::TransferHandler handler) override {
    shared_->socket.async_write_some(buffers, std::move(handler));
  }

  void shut_down(ByteStream::DoneHandler handler) override {
    error_code ignored;
    shared_->socket.shutdown(tcp::socket::shutdown_send, ignored);
    shared_->timer.expires_after(std::chrono::seconds(1));
    shared_->timer.async_wait([weak = std::weak_ptr<Socket>(shared_)](error_code error) {
      const auto shared = weak.lock();
      error_code closing;
      if (!error && shared) shared->socket.close(closing);
    });
    Drain drain;
    drain.shared = shared_;
    asio::async_compose<ByteStream::DoneHandler, void(error_code)>(std::move(drain), handler, shared_->socket);
  }

  void close() noexcept override {
    error_code ignored;
    shared_->socket.close(ignored);
    shared_->timer.cancel();
  }

 private:
  std::shared_ptr<Socket> shared_;
  std::string first_;
};

}  // namespace

ByteStream make_byte_stream(tcp::socket socket, std::string first) {
  return ByteStream(std::make_shared<SocketCarrier>(std::move(socket), std::move(first)));
}

}  // namespace millrace
