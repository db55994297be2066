// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <millrace/tensor/tensor.h>

namespace millrace::detail {

/// A frame: kind and length of the text (u32), two numbers (u64), little-endian; the text; for `data` the elements.
///   hello  who this is: a = rank, text = what rank 0 gave all
///   want   receiver → sender: a = number of the request; text = channel, 0, what is asked for
///   data   sender → receiver: a = number, b = bytes; the elements
///   go     the same without elements: they come over the device's way
///   lost   the same: the sender's work failed; text = how
///   left   this rank's communicator of a channel is gone: a = how many messages it has sent here; text = channel
///   ended  the world has ended: a = TcpFailure; text = why
///   bye    this rank sends nothing more
enum class TcpKind : std::uint32_t { hello, want, data, go, lost, left, ended, bye };

struct TcpFrame {
  TcpKind kind = TcpKind::hello;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::string text;
};

/// One connection, for the thread of its io_context. Its operations keep it alive.
class TcpLink final : public std::enable_shared_from_this<TcpLink> {
 public:
  explicit TcpLink(boost::asio::ip::tcp::socket socket);

  /// Reads until the end: each frame goes to `frame`; its elements go to what `room` gives for (number, bytes), which is an empty tensor
  /// where nobody asked for them. `end` is called once, with why, or "" when the other side closed.
  struct Reader {
    std::function<void(TcpFrame)> frame;
    std::function<std::shared_ptr<void>(std::uint64_t number, std::uint64_t bytes, void** to)> room;
    std::function<void(const std::string&)> end;
  };
  void read(Reader reader);
  /// One frame of at most `text` bytes and no elements; null when there came none.
  void read_one(std::size_t text, std::function<void(const TcpFrame*)> then);
  /// Writes a frame behind those before it. `elements` go behind a `data` frame. `then` is called when all bytes are with the system, or never will be.
  void write(const TcpFrame& frame, const Tensor* elements = nullptr, std::function<void(bool)> then = nullptr);
  /// Ends the connection when what was written before has gone.
  void shut_down();
  void close() noexcept;
  bool closed() const noexcept { return closed_; }

 private:
  struct Out {
    std::string head;
    Tensor elements;
    std::function<void(bool)> then;
  };
  static constexpr std::size_t header_bytes = 24;
  static constexpr std::size_t most_text = 64 * 1024;

  void read_header();
  void read_text();
  void read_elements();
  bool decode(std::size_t most);
  void write_next();
  void end(const std::string& why);

  boost::asio::ip::tcp::socket socket_;
  Reader reader_;
  std::array<unsigned char, header_bytes> header_{};
  TcpFrame in_;
  std::deque<Out> out_;
  bool closed_ = false;
  bool broken_ = false;  // nothing can be written, but what came before may still be read
  bool shutting_ = false;
};
using TcpLinkPtr = std::shared_ptr<TcpLink>;

}  // namespace millrace::detail
