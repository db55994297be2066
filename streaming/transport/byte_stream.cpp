// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/byte_stream.h>

#include <netinet/tcp.h>

#include <boost/asio/append.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/transport/internal/completion_executor.h>
#include <millrace/streaming/transport/internal/socket_drain.h>

namespace millrace {
namespace {

using asio::ip::tcp;

/// A socket and the timer of its shutdown, shared with the operations that are pending.
struct Socket {
  explicit Socket(tcp::socket connected) : connection(std::move(connected)), timer(connection.get_executor()) {}
  tcp::socket& socket() noexcept { return connection; }
  tcp::socket connection;
  asio::steady_timer timer;
};

class SocketCarrier final : public ByteStream::Carrier {
 public:
  explicit SocketCarrier(tcp::socket socket) : shared_(std::make_shared<Socket>(std::move(socket))) {
    set_stream_options(shared_->connection);
  }
  ~SocketCarrier() override { close(); }

  ByteStream::executor_type executor() override { return shared_->connection.get_executor(); }

  void read_some(const ReadBuffers& buffers, ByteStream::TransferHandler handler) override {
    // One buffer, not a list of one: the system call for it costs less.
    if (buffers.size() == 1)
      shared_->connection.async_read_some(*buffers.begin(), bound(std::move(handler)));
    else
      shared_->connection.async_read_some(buffers, bound(std::move(handler)));
  }
  void write_some(const WriteBuffers& buffers, ByteStream::TransferHandler handler) override {
    shared_->connection.async_write_some(buffers, bound(std::move(handler)));
  }
  void shut_down(ByteStream::DoneHandler handler) override {
    close_in_a_second(shared_);
    drain_socket(shared_, handler);
  }
  void close() noexcept override {
    error_code ignored;
    shared_->connection.close(ignored);
    shared_->timer.cancel();
  }

 private:
  /// The handler with its executor, which an operation would else convert for itself.
  asio::executor_binder<ByteStream::TransferHandler, asio::any_completion_executor> bound(ByteStream::TransferHandler handler) const {
    auto completes_on = asio::get_associated_executor(handler, completes_on_);
    return asio::bind_executor(std::move(completes_on), std::move(handler));
  }

  std::shared_ptr<Socket> shared_;
  asio::any_completion_executor completes_on_ = completion_executor(shared_->connection.get_executor());
};

/// Gives `first`, then what another carrier gives.
class PutBack final : public ByteStream::Carrier {
 public:
  PutBack(std::shared_ptr<Carrier> carrier, std::string first) : carrier_(std::move(carrier)), first_(std::move(first)) {}

  ByteStream::executor_type executor() override { return carrier_->executor(); }
  void read_some(const ReadBuffers& buffers, ByteStream::TransferHandler handler) override {
    if (first_.empty()) return carrier_->read_some(buffers, std::move(handler));
    const std::size_t count = asio::buffer_copy(buffers, asio::buffer(first_));
    first_.erase(0, count);
    asio::post(executor(), asio::append(std::move(handler), error_code(), count));
  }
  void write_some(const WriteBuffers& buffers, ByteStream::TransferHandler handler) override {
    carrier_->write_some(buffers, std::move(handler));
  }
  void shut_down(ByteStream::DoneHandler handler) override { carrier_->shut_down(std::move(handler)); }
  void close() noexcept override { carrier_->close(); }

 private:
  std::shared_ptr<Carrier> carrier_;
  std::string first_;
};

}  // namespace

void ByteStream::Carrier::handshake(DoneHandler handler) { asio::post(executor(), asio::append(std::move(handler), error_code())); }

void set_stream_options(tcp::socket& socket) noexcept {
  using UnsentBytes = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_NOTSENT_LOWAT>;
  constexpr int unsent_bytes = 16384;
  error_code ignored;  // a peer that is gone already is found by the first read
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(UnsentBytes(unsent_bytes), ignored);
}

ByteStream make_byte_stream(tcp::socket socket) { return ByteStream(std::make_shared<SocketCarrier>(std::move(socket))); }

ByteStream put_back(ByteStream bytes, std::string first) {
  return ByteStream(std::make_shared<PutBack>(bytes.carrier(), std::move(first)));
}

}  // namespace millrace
