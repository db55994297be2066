// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/internal/tcp_link.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <millrace/runtime/task/asio.h>

namespace millrace::detail {
namespace {

using boost::system::error_code;

void put(std::string& to, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
}

std::uint64_t get(const unsigned char* from, int bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  return value;
}

}  // namespace

TcpLink::TcpLink(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

bool TcpLink::decode(std::size_t most) {
  const std::uint64_t kind = get(header_.data(), 4), text = get(header_.data() + 4, 4);
  if (kind > static_cast<std::uint64_t>(TcpKind::bye) || text > most) return false;
  in_ = TcpFrame{static_cast<TcpKind>(kind), get(header_.data() + 8, 8), get(header_.data() + 16, 8), {}};
  in_.text.resize(text);
  return true;
}

// ---- In ----

void TcpLink::read_one(std::size_t text, std::function<void(const TcpFrame*)> then) {
  asio::async_read(
      socket_, asio::buffer(header_), [self = shared_from_this(), text, then = std::move(then)](error_code error, std::size_t) mutable {
        if (error || !self->decode(text) || self->in_.kind == TcpKind::data) return then(nullptr);
        asio::async_read(self->socket_, asio::buffer(self->in_.text),
                         [self, then = std::move(then)](error_code failed, std::size_t) { then(failed ? nullptr : &self->in_); });
      });
}

void TcpLink::read(Reader reader) {
  reader_ = std::move(reader);
  read_header();
}

void TcpLink::read_header() {
  asio::async_read(socket_, asio::buffer(header_), [self = shared_from_this()](error_code error, std::size_t count) {
    if (error == asio::error::eof && count == 0) return self->end("");
    if (error) return self->end(error.message());
    if (!self->decode(most_text)) return self->end("it sent what is no frame");
    self->read_text();
  });
}

void TcpLink::read_text() {
  asio::async_read(socket_, asio::buffer(in_.text), [self = shared_from_this()](error_code error, std::size_t) {
    if (error) return self->end(error.message());
    if (self->in_.kind == TcpKind::data) return self->read_elements();
    self->reader_.frame(std::move(self->in_));
    if (!self->closed_) self->read_header();
  });
}

/// Straight to where they belong.
void TcpLink::read_elements() {
  void* to = nullptr;
  std::shared_ptr<void> kept = reader_.room(in_.a, in_.b, &to);
  if (kept == nullptr) return end("it sent what nobody asked for");
  asio::async_read(socket_, asio::buffer(to, in_.b), [self = shared_from_this(), kept](error_code error, std::size_t) {
    if (error) return self->end(error.message());
    self->reader_.frame(std::move(self->in_));
    if (!self->closed_) self->read_header();
  });
}

void TcpLink::end(const std::string& why) {
  if (!reader_.end) return;
  const auto last = std::exchange(reader_, {}).end;
  last(why);
}

// ---- Out ----

void TcpLink::write(const TcpFrame& frame, const Tensor* elements, std::function<void(bool)> then) {
  if (closed_ || shutting_ || broken_) {
    if (then) then(false);
    return;
  }
  Out out;
  put(out.head, static_cast<std::uint64_t>(frame.kind), 4);
  const std::size_t text = std::min(frame.text.size(), most_text);
  put(out.head, text, 4);
  put(out.head, frame.a, 8);
  put(out.head, frame.b, 8);
  out.head.append(frame.text, 0, text);
  if (elements != nullptr) out.elements = *elements;
  out.then = std::move(then);
  out_.push_back(std::move(out));
  if (out_.size() == 1) write_next();
}

void TcpLink::write_next() {
  const Out& out = out_.front();
  const std::array<asio::const_buffer, 2> buffers{asio::buffer(out.head), asio::buffer(out.elements.raw(), out.elements.bytes())};
  asio::async_write(socket_, buffers, [self = shared_from_this()](error_code error, std::size_t) {
    self->broken_ = self->broken_ || error;
    const auto then = std::exchange(self->out_.front().then, nullptr);
    if (then) then(!error);  // its writes come behind this one, which is still there
    self->out_.pop_front();
    if (error) {
      std::deque<Out> rest;
      rest.swap(self->out_);
      for (const Out& lost : rest)
        if (lost.then) lost.then(false);
    } else if (!self->out_.empty()) {
      self->write_next();
    } else if (self->shutting_) {
      error_code ignored;
      self->socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    }
  });
}

void TcpLink::shut_down() {
  if (std::exchange(shutting_, true) || !out_.empty()) return;
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

void TcpLink::close() noexcept {
  error_code ignored;
  closed_ = true;
  socket_.close(ignored);
}

}  // namespace millrace::detail
