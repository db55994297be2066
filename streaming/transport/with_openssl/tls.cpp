// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/tls.h>

#include <boost/asio/compose.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <utility>

#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/transport/internal/socket_drain.h>
#include <millrace/streaming/transport/with_openssl/tls_engine.h>
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

/// A socket, the TLS on it, and the timer of its shutdown, shared with the operations that are pending.
struct TlsSocket {
  TlsSocket(tcp::socket connected, std::shared_ptr<ssl::context> context, TlsEngine::Role its_role)
      : connection(std::move(connected)),
        engine(connection, std::move(context), its_role),
        timer(connection.get_executor()),
        role(its_role) {}
  tcp::socket& socket() noexcept { return connection; }

  tcp::socket connection;
  TlsEngine engine;
  asio::steady_timer timer;
  const TlsEngine::Role role;
};

/// Tries `Attempt` whenever the socket is ready for it, until it is done. Completes through the queue, never inside the call that began it.
template <class Attempt>
struct TlsOp {
  using Wants = TlsEngine::Wants;
  std::shared_ptr<TlsSocket> shared;
  Attempt attempt;
  TlsEngine::Outcome outcome{};
  enum { beginning, waiting, done } stage = beginning;

  template <class Self>
  void operator()(Self& self, error_code error = {}) {
    if (stage == done) return attempt.complete(self, outcome);
    const auto held = shared;  // this op moves away with self
    if (error)
      outcome = {Wants::nothing, error};
    else if (stage == beginning && attempt.waits_first(held->engine))
      outcome = {Wants::to_read};
    else
      outcome = attempt.start(held->engine);
    if (outcome.wants != Wants::nothing) {
      const auto ready = outcome.wants == Wants::to_read ? tcp::socket::wait_read : tcp::socket::wait_write;
      stage = waiting;
      return held->connection.async_wait(ready, std::move(self));
    }
    if (stage == waiting) return attempt.complete(self, outcome);
    stage = done;
    asio::post(held->connection.get_executor(), std::move(self));
  }
};

struct HandshakeAttempt {
  std::shared_ptr<TlsSocket> shared;
  bool waits_first(const TlsEngine&) const noexcept { return shared->role == TlsEngine::Role::server; }
  TlsEngine::Outcome start(TlsEngine& engine) const { return engine.handshake(); }
  template <class Self>
  void complete(Self& self, const TlsEngine::Outcome& outcome) const {
    error_code error = outcome.error;
    const long found = shared->role == TlsEngine::Role::client ? ::SSL_get_verify_result(shared->engine.native()) : X509_V_OK;
    if (error && found != X509_V_OK) error = error_code(static_cast<int>(found), certificate_category());
    self.complete(error);
  }
};

struct ReadAttempt {
  ReadBuffers buffers;
  bool waits_first(const TlsEngine& engine) const noexcept { return !engine.holds_input(); }
  TlsEngine::Outcome start(TlsEngine& engine) const { return engine.read(buffers); }
  template <class Self>
  void complete(Self& self, const TlsEngine::Outcome& outcome) const {
    self.complete(outcome.error, outcome.bytes);
  }
};

struct WriteAttempt {
  WriteBuffers buffers;
  bool waits_first(const TlsEngine&) const noexcept { return false; }
  TlsEngine::Outcome start(TlsEngine& engine) const { return engine.write(buffers); }
  template <class Self>
  void complete(Self& self, const TlsEngine::Outcome& outcome) const {
    self.complete(outcome.error, outcome.bytes);
  }
};

/// Says close_notify, and then does as a plain socket does.
struct ShutDownAttempt {
  std::shared_ptr<TlsSocket> shared;
  bool drained = false;
  bool waits_first(const TlsEngine&) const noexcept { return false; }
  TlsEngine::Outcome start(TlsEngine& engine) const { return engine.shut_down(); }
  template <class Self>
  void complete(Self& self, const TlsEngine::Outcome&) {
    if (std::exchange(drained, true)) return self.complete(error_code());
    auto held = shared;
    ByteStream::DoneHandler next(std::move(self));
    drain_socket(std::move(held), next);
  }
};

class TlsCarrier final : public ByteStream::Carrier {
 public:
  explicit TlsCarrier(std::shared_ptr<TlsSocket> shared) : shared_(std::move(shared)) { set_stream_options(shared_->connection); }
  ~TlsCarrier() override { close(); }

  ByteStream::executor_type executor() override { return shared_->connection.get_executor(); }
  void handshake(ByteStream::DoneHandler handler) override { begin<void(error_code)>(HandshakeAttempt{shared_}, handler); }
  void read_some(const ReadBuffers& buffers, ByteStream::TransferHandler handler) override {
    begin<void(error_code, std::size_t)>(ReadAttempt{buffers}, handler);
  }
  void write_some(const WriteBuffers& buffers, ByteStream::TransferHandler handler) override {
    begin<void(error_code, std::size_t)>(WriteAttempt{buffers}, handler);
  }
  void shut_down(ByteStream::DoneHandler handler) override {
    close_in_a_second(shared_);
    begin<void(error_code)>(ShutDownAttempt{shared_}, handler);
  }
  void close() noexcept override {
    error_code ignored;
    shared_->connection.close(ignored);
    shared_->timer.cancel();
  }

 private:
  template <class Signature, class Attempt>
  void begin(Attempt attempt, asio::any_completion_handler<Signature>& handler) {
    TlsOp<Attempt> op{shared_, std::move(attempt)};
    asio::async_compose<asio::any_completion_handler<Signature>, Signature>(std::move(op), handler, shared_->connection);
  }

  std::shared_ptr<TlsSocket> shared_;
};

std::shared_ptr<ssl::context> make_context(ssl::context::method method) {
  auto context = std::make_shared<ssl::context>(method);
  SSL_CTX* native = context->native_handle();
  ::SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  ::SSL_CTX_set_options(native, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  ::SSL_CTX_set_num_tickets(native, 0);
  ::SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  // An idle connection holds no buffers of OpenSSL's; a write that was held up is tried again from another place.
  ::SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
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
  return ByteStream(std::make_shared<TlsCarrier>(std::make_shared<TlsSocket>(std::move(socket), state_->context, TlsEngine::Role::server)));
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
  auto shared = std::make_shared<TlsSocket>(std::move(socket), state_->context, TlsEngine::Role::client);
  SSL* native = shared->engine.native();
  error_code no_address;
  asio::ip::make_address(host, no_address);
  if (no_address) SSL_set_tlsext_host_name(native, host.c_str());  // the extension takes no address
  ::SSL_set_verify(native, state_->verifies ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
  if (state_->verifies && no_address) ::SSL_set1_host(native, host.c_str());
  if (state_->verifies && !no_address) ::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(native), host.c_str());
  return ByteStream(std::make_shared<TlsCarrier>(std::move(shared)));
}

}  // namespace millrace
