// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/with_openssl/tls_engine.h>

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <boost/asio/ssl/error.hpp>

#include <openssl/bio.h>
#include <openssl/err.h>

#include <millrace/runtime/task/asio.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

constexpr std::size_t head_bytes = 5;
constexpr std::size_t most_plain = 16384;                 // of a record
constexpr std::size_t most_sealed = most_plain + 2048;    // RFC 5246, section 6.2.3
constexpr std::size_t kept_bytes = 256;                   // of an input buffer that is empty
constexpr unsigned char first_type = 20, last_type = 24;  // of records: change_cipher_spec to heartbeat

error_code last_error() { return {errno, boost::system::system_category()}; }
bool would_block() noexcept { return errno == EAGAIN || errno == EWOULDBLOCK; }

/// Bytes of the record at the front; 0 while it is not whole. Bytes that are no record are for OpenSSL to refuse.
std::size_t whole_record(std::string_view bytes) noexcept {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (!bytes.empty() && (at(0) < first_type || at(0) > last_type)) return bytes.size();
  if (bytes.size() < head_bytes) return 0;
  const std::size_t length = std::size_t{at(3)} << 8 | at(4);
  if (length > most_sealed) return bytes.size();
  return bytes.size() < head_bytes + length ? 0 : head_bytes + length;
}

}  // namespace

/// The access of OpenSSL to the socket.
struct TlsEngine::Transport {
  static TlsEngine& of(BIO* bio) noexcept { return *static_cast<TlsEngine*>(::BIO_get_data(bio)); }

  static int read(BIO* bio, char* to, int size) noexcept {
    TlsEngine& engine = of(bio);
    BIO_clear_retry_flags(bio);
    const std::size_t count = engine.take({to, static_cast<std::size_t>(std::max(size, 0))});
    if (count > 0) return static_cast<int>(count);
    if (!engine.ended_ && !engine.broken_) BIO_set_retry_read(bio);
    return engine.ended_ ? 0 : -1;
  }
  static int write(BIO* bio, const char* bytes, int size) noexcept {
    TlsEngine& engine = of(bio);
    BIO_clear_retry_flags(bio);
    const std::ptrdiff_t count = engine.put({bytes, static_cast<std::size_t>(std::max(size, 0))});
    if (count < 0 && !engine.broken_) BIO_set_retry_write(bio);
    return static_cast<int>(count);
  }
  static long control(BIO* bio, int command, long, void*) noexcept {
    if (command == BIO_CTRL_FLUSH) return 1;
    return command == BIO_CTRL_EOF && of(bio).ended_ ? 1 : 0;
  }
  static BIO_METHOD* method() {
    static BIO_METHOD* const made = [] {
      BIO_METHOD* fresh = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "millrace socket");
      if (fresh == nullptr) throw std::bad_alloc();
      ::BIO_meth_set_read(fresh, read);
      ::BIO_meth_set_write(fresh, write);
      ::BIO_meth_set_ctrl(fresh, control);
      return fresh;
    }();
    return made;
  }
};

TlsEngine::TlsEngine(asio::ip::tcp::socket& socket, std::shared_ptr<asio::ssl::context> context, Role role)
    : socket_(socket), context_(std::move(context)), role_(role) {}

SSL* TlsEngine::native() {
  if (ssl_) return ssl_.get();
  std::unique_ptr<SSL, Free> made(::SSL_new(context_->native_handle()));
  BIO* const transport = made ? ::BIO_new(Transport::method()) : nullptr;
  if (transport == nullptr) throw std::bad_alloc();
  ::BIO_set_data(transport, this);
  ::BIO_set_init(transport, 1);
  ::SSL_set_bio(made.get(), transport, transport);
  role_ == Role::server ? ::SSL_set_accept_state(made.get()) : ::SSL_set_connect_state(made.get());
  ssl_ = std::move(made);
  return ssl_.get();
}

bool TlsEngine::holds_input() const noexcept {
  return more_ || ended_ || broken_ || record_ > 0 || whole_record(std::string_view(held_).substr(given_)) > 0 ||
         (ssl_ && ::SSL_pending(ssl_.get()) > 0);
}

// ---- Records ----

std::size_t TlsEngine::whole() noexcept {
  if (record_ == 0) record_ = whole_record(std::string_view(held_).substr(given_));
  return record_;
}

/// Reads until a record is whole, or nothing is there.
void TlsEngine::fill() noexcept try {
  std::array<char, head_bytes + most_sealed> arrived;
  if (whole() == 0) held_.erase(0, std::exchange(given_, 0));
  while (whole() == 0 && !ended_ && !broken_) {
    const ssize_t count = ::recv(socket_.native_handle(), arrived.data(), arrived.size(), MSG_DONTWAIT);
    more_ = count > 0 && static_cast<std::size_t>(count) == arrived.size();
    if (count > 0)
      held_.append(arrived.data(), static_cast<std::size_t>(count));
    else if (count == 0)
      ended_ = true;
    else if (would_block())
      return;
    else if (errno != EINTR)
      broken_ = last_error();
    if (count > 0 && !more_) return;  // the socket tells of what follows
  }
} catch (const std::bad_alloc&) {
  broken_ = asio::error::no_memory;
}

std::size_t TlsEngine::take(std::span<char> to) noexcept {
  fill();
  const std::size_t count = std::min(to.size(), whole());
  std::copy_n(held_.data() + given_, count, to.data());
  given_ += count;
  record_ -= count;
  if (given_ == held_.size()) {
    if (held_.capacity() > kept_bytes)
      std::string().swap(held_);
    else
      held_.clear();
    given_ = 0;
  }
  return count;
}

std::ptrdiff_t TlsEngine::put(std::span<const char> bytes) noexcept {
  for (;;) {
    const ssize_t count = ::send(socket_.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) return count;
    if (errno == EINTR) continue;
    if (!would_block()) broken_ = last_error();
    return -1;
  }
}

// ---- Operations ----

TlsEngine::Outcome TlsEngine::outcome_of(int result) {
  switch (::SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_NONE: return {};
    case SSL_ERROR_WANT_READ: return {Wants::to_read};
    case SSL_ERROR_WANT_WRITE: return {Wants::to_write};
    case SSL_ERROR_ZERO_RETURN: return {Wants::nothing, asio::error::eof};
    default: break;
  }
  if (broken_) return {Wants::nothing, broken_};
  const unsigned long why = ::ERR_get_error();
  // A peer that goes without a word of TLS is one whose connection broke: a reader of whole messages need not tell them apart.
  if (why == 0 || ended_) return {Wants::nothing, asio::error::connection_reset};
  return {Wants::nothing, error_code(static_cast<int>(why), asio::error::get_ssl_category())};
}

/// Nothing is there for OpenSSL to look at.
TlsEngine::Outcome TlsEngine::no_input() const {
  if (broken_) return {Wants::nothing, broken_};
  if (ended_) return {Wants::nothing, asio::error::connection_reset};
  return {Wants::to_read};
}

TlsEngine::Outcome TlsEngine::handshake() {
  if (role_ == Role::server && !ssl_) {
    fill();
    if (whole() == 0) return no_input();
  }
  SSL* const ssl = native();
  ::ERR_clear_error();
  return outcome_of(::SSL_do_handshake(ssl));
}

TlsEngine::Outcome TlsEngine::read(const ReadBuffers& buffers) {
  if (buffers.begin() == buffers.end()) return {};
  if (::SSL_pending(native()) == 0) {
    fill();
    if (whole() == 0) return no_input();
  }
  ::ERR_clear_error();
  std::size_t count = 0;
  const int result = ::SSL_read_ex(ssl_.get(), buffers.begin()->data(), buffers.begin()->size(), &count);
  Outcome outcome = outcome_of(result);
  outcome.bytes = count;
  return outcome;
}

TlsEngine::Outcome TlsEngine::write(const WriteBuffers& buffers) {
  if (buffers.begin() == buffers.end()) return {};
  std::array<char, most_plain> together;
  const void* bytes = buffers.begin()->data();
  std::size_t size = buffers.begin()->size();
  if (std::next(buffers.begin()) != buffers.end() && size < together.size()) {
    size = asio::buffer_copy(asio::buffer(together), buffers);
    bytes = together.data();
  }
  ::ERR_clear_error();
  std::size_t count = 0;
  const int result = ::SSL_write_ex(native(), bytes, size, &count);
  Outcome outcome = outcome_of(result);
  outcome.bytes = count;
  return outcome;
}

TlsEngine::Outcome TlsEngine::shut_down() {
  if (!ssl_ || !SSL_is_init_finished(ssl_.get())) return {};
  ::ERR_clear_error();
  const Outcome outcome = outcome_of(::SSL_shutdown(ssl_.get()));
  return outcome.wants == Wants::to_write ? outcome : Outcome();
}

}  // namespace millrace
