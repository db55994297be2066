// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <millrace/streaming/transport/asio.h>

namespace millrace {

/// The first buffers of a sequence, at most 16: enough for one `read_some` or `write_some`.
template <class Buffer>
class BufferList {
 public:
  template <class Sequence>
  explicit BufferList(const Sequence& sequence) {
    auto end = boost::asio::buffer_sequence_end(sequence);
    for (auto at = boost::asio::buffer_sequence_begin(sequence); at != end && size_ < buffers_.size(); ++at)
      if (Buffer buffer(*at); buffer.size() > 0) buffers_[size_++] = buffer;
  }
  using value_type = Buffer;
  using const_iterator = const Buffer*;
  const Buffer* begin() const noexcept { return buffers_.data(); }
  const Buffer* end() const noexcept { return buffers_.data() + size_; }
  std::size_t size() const noexcept { return size_; }

 private:
  std::array<Buffer, 16> buffers_;
  std::size_t size_ = 0;
};
using ReadBuffers = BufferList<boost::asio::mutable_buffer>;
using WriteBuffers = BufferList<boost::asio::const_buffer>;

/// An ordered stream of bytes with its type erased, so that what is built on it compiles once. It is an AsyncReadStream and an
/// AsyncWriteStream.
///
/// Initiating functions take any completion token; handlers run through their associated executor (else the stream's), and the associated
/// allocator and cancellation slot are honoured (terminal cancellation; the stream is of no use after it). At most one read and one write
/// at a time. Destroying a stream that has an operation pending closes it; the operation completes with operation_aborted. Not thread-safe:
/// use it on its executor.
class ByteStream {
 public:
  using executor_type = boost::asio::any_io_executor;
  using TransferHandler = boost::asio::any_completion_handler<void(error_code, std::size_t)>;
  using DoneHandler = boost::asio::any_completion_handler<void(error_code)>;

  /// The carrier of the bytes: a socket, or a test.
  class Carrier {
   public:
    virtual ~Carrier() = default;
    virtual executor_type executor() = 0;
    /// Agrees with the peer on how bytes are carried (TLS). The default has nothing to agree on, and completes without an error.
    virtual void handshake(DoneHandler handler);
    virtual void read_some(const ReadBuffers& buffers, TransferHandler handler) = 0;
    virtual void write_some(const WriteBuffers& buffers, TransferHandler handler) = 0;
    /// Ends sending, discards what still arrives until the peer ends too or a second has passed, then closes: so the peer can read what was
    /// sent last.
    virtual void shut_down(DoneHandler handler) = 0;
    virtual void close() noexcept = 0;
  };

  explicit ByteStream(std::shared_ptr<Carrier> carrier) : carrier_(std::move(carrier)) {}
  ByteStream(ByteStream&&) noexcept = default;
  ByteStream& operator=(ByteStream&&) noexcept = default;

  executor_type get_executor() { return carrier_->executor(); }

  /// Before the first read and write. Completes with (error_code): a code of TLS names its cause, such as an expired certificate.
  template <class Token>
  auto async_handshake(Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code)>(
        [](auto handler, Carrier* carrier) { carrier->handshake(std::move(handler)); }, token, carrier_.get());
  }
  /// Completes with (error_code, bytes read); eof when the peer ended.
  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code, std::size_t)>(
        [](auto handler, Carrier* carrier, const ReadBuffers& list) { carrier->read_some(list, std::move(handler)); }, token,
        carrier_.get(), ReadBuffers(buffers));
  }
  /// Completes with (error_code, bytes written).
  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code, std::size_t)>(
        [](auto handler, Carrier* carrier, const WriteBuffers& list) { carrier->write_some(list, std::move(handler)); }, token,
        carrier_.get(), WriteBuffers(buffers));
  }
  /// Completes with (error_code) when the stream is closed: see Carrier::shut_down.
  template <class Token>
  auto async_shut_down(Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code)>(
        [](auto handler, Carrier* carrier) { carrier->shut_down(std::move(handler)); }, token, carrier_.get());
  }
  /// Closes at once; pending operations complete with operation_aborted.
  void close() noexcept { carrier_->close(); }
  /// For a deadline, which closes the stream wherever it moved to, if it still lives.
  const std::shared_ptr<Carrier>& carrier() const noexcept { return carrier_; }

 private:
  std::shared_ptr<Carrier> carrier_;
};

/// For a connected socket: nothing is held back to be joined with more, and at most some 16 KiB that the peer has no room for wait in the kernel, where its own choice
/// would be megabytes; bytes that were sent and not acknowledged have no bound, and so no rate has one.
void set_stream_options(boost::asio::ip::tcp::socket& socket) noexcept;

/// A connected socket as a ByteStream, with these options.
ByteStream make_byte_stream(boost::asio::ip::tcp::socket socket);

/// `bytes`, of which `first` was already read: it is read once more.
ByteStream put_back(ByteStream bytes, std::string first);

}  // namespace millrace
