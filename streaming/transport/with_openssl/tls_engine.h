// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <boost/asio/ssl/context.hpp>

#include <openssl/ssl.h>

#include <millrace/streaming/transport/byte_stream.h>

namespace millrace {

/// TLS over a connected socket, without waiting: each member does what can be done now, and says what the socket has to be ready for otherwise.
///
/// An idle connection holds no buffer. OpenSSL is given whole records, so a part of a record costs the bytes that have arrived, and OpenSSL's own
/// buffers of 16 KiB live within a call. A server's connection that has sent no whole record holds nothing of OpenSSL's. Not thread-safe.
class TlsEngine {
 public:
  enum class Role : bool { client, server };
  enum class Wants : std::uint8_t { nothing, to_read, to_write };
  /// `wants` is nothing: it is done, with `error` and `bytes`.
  struct Outcome {
    Wants wants = Wants::nothing;
    error_code error{};
    std::size_t bytes = 0;
  };

  /// `socket` outlives it, and may be closed meanwhile.
  TlsEngine(boost::asio::ip::tcp::socket& socket, std::shared_ptr<boost::asio::ssl::context> context, Role role);
  TlsEngine(const TlsEngine&) = delete;
  TlsEngine& operator=(const TlsEngine&) = delete;

  /// Made when it is first asked for.
  SSL* native();
  /// Bytes have arrived that the socket does not tell of any more: read before waiting.
  bool holds_input() const noexcept;

  /// A code of Asio's ssl category names the cause; connection_reset for a peer that left in the middle.
  Outcome handshake();
  /// At least one byte, unless `buffers` are empty; eof when the peer ended as TLS does.
  Outcome read(const ReadBuffers& buffers);
  /// At most one record of up to 16 KiB. Called again after Wants it is given the same bytes.
  Outcome write(const WriteBuffers& buffers);
  /// Says close_notify where there is somebody to tell. An answer is not waited for: the protocol has its own end.
  Outcome shut_down();

 private:
  struct Free {
    void operator()(SSL* ssl) const noexcept { ::SSL_free(ssl); }
  };
  struct Transport;

  std::size_t whole() noexcept;
  void fill() noexcept;
  std::size_t take(std::span<char> to) noexcept;
  std::ptrdiff_t put(std::span<const char> bytes) noexcept;
  Outcome outcome_of(int result);
  Outcome no_input() const;

  boost::asio::ip::tcp::socket& socket_;
  std::shared_ptr<boost::asio::ssl::context> context_;
  Role role_;
  bool ended_ = false;      // the peer sends no more
  bool more_ = false;       // the last read of the socket took all that there was room for
  error_code broken_;       // of the socket
  std::string held_;        // arrived, and not given to OpenSSL
  std::size_t given_ = 0;   // of held_: begins behind these
  std::size_t record_ = 0;  // bytes of a whole record that are left at the front
  std::unique_ptr<SSL, Free> ssl_;
};

}  // namespace millrace
