// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>

#include <millrace/streaming/transport/byte_stream.h>

namespace millrace::simulated {

/// One connection: bytes that are on their way both ways, in buffers that have an end. The server's side is a ByteStream.
class Wire : public std::enable_shared_from_this<Wire> {
 public:
  /// `window`: bytes that may be on their way to the client.
  Wire(boost::asio::io_context& context, std::size_t window) : context_(context), window_(window) {}

  ByteStream server_side();

  // ---- The client's side ----
  void send(std::string_view bytes) { to_server_ += bytes; }
  /// Takes up to `most` of the bytes that arrived.
  std::string receive(std::size_t most);
  /// Nothing follows what was sent. `reset`: nothing of it arrives either.
  void close(bool reset);
  /// The server sends no more.
  bool ended() const noexcept { return server_ended_; }
  std::size_t to_client() const noexcept { return to_client_.size(); }

  // ---- The network ----
  /// Up to `most` bytes, or the end, reach the server.
  void deliver(std::size_t most);
  /// The server's process is gone.
  void sever();
  bool can_deliver() const noexcept { return !to_server_.empty() || (client_ended_ && !end_delivered_); }

 private:
  class Carrier;
  struct Pending;
  void complete_read();
  void complete_write();
  void server_closed();

  boost::asio::io_context& context_;
  std::size_t window_;
  std::string to_server_;  // sent
  std::string arrived_;    // at the server
  std::string to_client_;
  bool client_ended_ = false, end_delivered_ = false, reset_ = false, server_ended_ = false, server_closed_ = false;
  std::shared_ptr<Pending> reading_, writing_, closing_;
};

}  // namespace millrace::simulated
