// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include <millrace/streaming/transport/asio.h>
#include <millrace/streaming/transport/byte_stream.h>

namespace millrace {

/// The certificate that a server shows, with its key: TLS 1.2 and 1.3, no session tickets, no renegotiation. Not thread-safe.
///
/// In a build without OpenSSL the constructors of this header throw UnsupportedError.
class TlsServer {
 public:
  /// `certificate_file`: a certificate in PEM, followed by those between it and its authority. `key_file`: its private key in PEM, without a
  /// passphrase. IoError names the file that cannot be read; ParseError the one that is not what it should be, and a key of another
  /// certificate.
  TlsServer(const std::string& certificate_file, const std::string& key_file);

  /// Reads both files again. Connections accepted from now on get the new certificate; others go on. The certificate in force stays where this
  /// throws, with the constructor's errors.
  void reload();
  /// A connected socket as a stream on which the server's side of TLS is spoken, after `async_handshake`.
  ByteStream accept(boost::asio::ip::tcp::socket socket) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// The certificates that a client trusts. Not thread-safe.
class TlsClient {
 public:
  /// `ca_file`: certificates of authorities in PEM; empty: the system's. IoError, ParseError.
  explicit TlsClient(const std::string& ca_file = {});
  /// Trusts any certificate: messages are private, but the other side is unknown.
  static TlsClient trusting_anyone();

  /// A connected socket as a stream on which the client's side of TLS is spoken. `async_handshake` checks that the certificate was given to
  /// `host`, a name or an address, by an authority that is trusted, and is valid now; its error says which of these fails.
  ByteStream connect(boost::asio::ip::tcp::socket socket, const std::string& host) const;

 private:
  struct State;
  explicit TlsClient(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace millrace
