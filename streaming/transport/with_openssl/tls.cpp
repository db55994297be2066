// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/tls.h>

#include <boost/asio/compose.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>

#include <utility>

#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/transport/internal/socket_drain.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

using asio::ip::tcp;
namespace ssl = asio::ssl;

/// The defect of a certificate: the values are OpenSSL's X509_V_ERR_….
class CertificateCategory final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "millrace.certificate"; }
  std::string message(int value) const override {
    return std::string("the server's certificate: ") + ::X509_verify_cert_error_string(value);
  }
};
const boost::system::error_category& certificate_category() noexcept {
  static constinit const CertificateCategory category;
  return category;
}

/// A stream of TLS and the timer of its shutdown, shared with the operations that are pending, which refer to it.
struct TlsSocket {
  TlsSocket(tcp::socket connected, std::shared_ptr<ssl::context> with, ssl::stream_base::handshake_type its_role)
      : context(std::move(with)), stream(std::move(connected), *context), timer(stream.get_executor()), role(its_role) {}
  tcp::socket& socket() noexcept { return stream.next_layer(); }

  std::shared_ptr<ssl::context> context;
  ssl::stream<tcp::socket> stream;
  asio::steady_timer timer;
  const ssl::stream_base::handshake_type role;
};

// A peer that goes without a word of TLS is one whose connection broke: who trusts no message but a whole one need not tell them apart.
error_code plain(error_code error) { return error == ssl::error::stream_truncated ? error_code(asio::error::connection_reset) : error; }

struct HandshakeOp {
  std::shared_ptr<TlsSocket> shared;

  template <class Self>
  void operator()(Self& self) {
    const auto held = shared;  // this op moves away with self
    held->stream.async_handshake(held->role, std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error) {
    const long found = ::SSL_get_verify_result(shared->stream.native_handle());
    if (error && shared->role == ssl::stream_base::client && found != X509_V_OK)
      error = error_code(static_cast<int>(found), certificate_category());
    self.complete(plain(error));
  }
};

/// A read or a write: `Start` begins it on the stream.
template <class Buffers, class Start>
struct TransferOp {
  std::shared_ptr<TlsSocket> shared;
  Buffers buffers;

  template <class Self>
  void operator()(Self& self) {
    const auto held = shared;
    const Buffers list = buffers;
    Start()(held->stream, list, std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error, std::size_t count) {
    self.complete(plain(error), count);
  }
};
struct StartRead {
  template <class Self>
  void operator()(ssl::stream<tcp::socket>& stream, const ReadBuffers& buffers, Self&& self) const {
    stream.async_read_some(buffers, std::forward<Self>(self));
  }
};
struct StartWrite {
  template <class Self>
  void operator()(ssl::stream<tcp::socket>& stream, const WriteBuffers& buffers, Self&& self) const {
    stream.async_write_some(buffers, std::forward<Self>(self));
  }
};

/// Says close_notify, and then does as a plain socket does. An answer is not insisted on: the protocol has its own end.
struct ShutDownOp {
  std::shared_ptr<TlsSocket> shared;
  bool told = false;

  template <class Self>
  void operator()(Self& self) {
    const auto held = shared;
    held->stream.async_shutdown(std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code) {
    if (std::exchange(told, true)) return self.complete(error_code());
    auto held = shared;
    ByteStream::DoneHandler next(std::move(self));
    drain_socket(std::move(held), next);
  }
};

class TlsCarrier final : public ByteStream::Carrier {
 public:
  explicit TlsCarrier(std::shared_ptr<TlsSocket> shared) : shared_(std::move(shared)) {
    error_code ignored;
    shared_->socket().set_option(tcp::no_delay(true), ignored);
  }
  ~TlsCarrier() override { close(); }

  ByteStream::executor_type executor() override { return shared_->stream.get_executor(); }
  void handshake(ByteStream::DoneHandler handler) override {
    HandshakeOp op{shared_};
    asio::async_compose<ByteStream::DoneHandler, void(error_code)>(std::move(op), handler, shared_->socket());
  }
  void read_some(const ReadBuffers& buffers, ByteStream::TransferHandler handler) override {
    TransferOp<ReadBuffers, StartRead> op{shared_, buffers};
    asio::async_compose<ByteStream::TransferHandler, void(error_code, std::size_t)>(std::move(op), handler, shared_->socket());
  }
  void write_some(const WriteBuffers& buffers, ByteStream::TransferHandler handler) override {
    TransferOp<WriteBuffers, StartWrite> op{shared_, buffers};
    asio::async_compose<ByteStream::TransferHandler, void(error_code, std::size_t)>(std::move(op), handler, shared_->socket());
  }
  void shut_down(ByteStream::DoneHandler handler) override {
    close_in_a_second(shared_);
    ShutDownOp op{shared_};
    asio::async_compose<ByteStream::DoneHandler, void(error_code)>(std::move(op), handler, shared_->socket());
  }
  void close() noexcept override {
    error_code ignored;
    shared_->socket().close(ignored);
    shared_->timer.cancel();
  }

 private:
  std::shared_ptr<TlsSocket> shared_;
};

std::shared_ptr<ssl::context> make_context(ssl::context::method method) {
  auto context = std::make_shared<ssl::context>(method);
  SSL_CTX* native = context->native_handle();
  ::SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  ::SSL_CTX_set_options(native, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  ::SSL_CTX_set_num_tickets(native, 0);
  ::SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);  // an idle connection holds no buffers of OpenSSL's
  return context;
}

void check(const error_code& error, const std::string& file, const char* expected) {
  if (error) throw ParseError("tls: " + file + ": expected " + expected + ", found what OpenSSL refuses: " + error.message());
}

}  // namespace

struct TlsServer::State {
  std::string certificate_file, key_file;
  std::shared_ptr<ssl::context> context;

  std::shared_ptr<ssl::context> load() const {
    const std::string certificate = read_file(certificate_file), key = read_file(key_file);
    auto made = make_context(ssl::context::tls_server);
    error_code error;
    made->use_certificate_chain(asio::buffer(certificate), error);
    check(error, certificate_file, "certificates in PEM");
    // A key with a passphrase would be asked for at a terminal.
    made->set_password_callback([](std::size_t, ssl::context::password_purpose) { return std::string(); });
    made->use_private_key(asio::buffer(key), ssl::context::pem, error);
    check(error, key_file, ("the private key in PEM, without a passphrase, of the certificate in " + certificate_file).c_str());
    return made;
  }
};

TlsServer::TlsServer(const std::string& certificate_file, const std::string& key_file) : state_(std::make_shared<State>()) {
  state_->certificate_file = certificate_file;
  state_->key_file = key_file;
  reload();
}
void TlsServer::reload() { state_->context = state_->load(); }
ByteStream TlsServer::accept(tcp::socket socket) const {
  return ByteStream(
      std::make_shared<TlsCarrier>(std::make_shared<TlsSocket>(std::move(socket), state_->context, ssl::stream_base::server)));
}

struct TlsClient::State {
  std::shared_ptr<ssl::context> context = make_context(ssl::context::tls_client);
  bool verifies = true;
};

TlsClient::TlsClient(const std::string& ca_file) : state_(std::make_shared<State>()) {
  error_code error;
  if (ca_file.empty()) {
    state_->context->set_default_verify_paths(error);
    check(error, "the system's authorities", "certificates");
    return;
  }
  const std::string authorities = read_file(ca_file);
  state_->context->add_certificate_authority(asio::buffer(authorities), error);
  check(error, ca_file, "certificates of authorities in PEM");
}
TlsClient::TlsClient(std::shared_ptr<State> state) : state_(std::move(state)) {}
TlsClient TlsClient::trusting_anyone() {
  auto state = std::make_shared<State>();
  state->verifies = false;
  return TlsClient(std::move(state));
}
ByteStream TlsClient::connect(tcp::socket socket, const std::string& host) const {
  auto shared = std::make_shared<TlsSocket>(std::move(socket), state_->context, ssl::stream_base::client);
  SSL* native = shared->stream.native_handle();
  error_code no_address;
  asio::ip::make_address(host, no_address);
  if (no_address) SSL_set_tlsext_host_name(native, host.c_str());  // the extension takes no address
  shared->stream.set_verify_mode(state_->verifies ? ssl::verify_peer : ssl::verify_none);
  if (state_->verifies && no_address) ::SSL_set1_host(native, host.c_str());
  if (state_->verifies && !no_address) ::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(native), host.c_str());
  return ByteStream(std::make_shared<TlsCarrier>(std::move(shared)));
}

}  // namespace millrace
