// SPDX-License-Identifier: Apache-2.0
#include <service_soak/wire.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <boost/asio/append.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <millrace/runtime/task/asio.h>

namespace millrace::simulated {

/// An operation of the server's that waits.
struct Wire::Pending {
  explicit Pending(asio::io_context& context) : timer(context) {}
  ByteStream::TransferHandler transfer{};
  ByteStream::DoneHandler done{};
  std::optional<ReadBuffers> into{};
  std::optional<WriteBuffers> from{};
  asio::steady_timer timer;
};

namespace {

template <class Pointer>
void finish(asio::io_context& context, Pointer& pending, error_code error, std::size_t count) {
  const auto ended = std::exchange(pending, nullptr);
  if (!ended) return;
  asio::get_associated_cancellation_slot(ended->transfer).clear();
  asio::post(context, asio::append(std::move(ended->transfer), error, count));
}

}  // namespace

class Wire::Carrier final : public ByteStream::Carrier {
 public:
  explicit Carrier(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  ~Carrier() override { close(); }

  ByteStream::executor_type executor() override { return wire_->context_.get_executor(); }
  void read_some(const ReadBuffers& buffers, ByteStream::TransferHandler handler) override {
    auto pending = begin(std::move(handler));
    pending->into.emplace(buffers);
    wire_->reading_ = pending;
    cancellable(pending, &Wire::reading_);
    wire_->complete_read();
  }
  void write_some(const WriteBuffers& buffers, ByteStream::TransferHandler handler) override {
    auto pending = begin(std::move(handler));
    pending->from.emplace(buffers);
    wire_->writing_ = pending;
    cancellable(pending, &Wire::writing_);
    wire_->complete_write();
  }
  void shut_down(ByteStream::DoneHandler handler) override {
    wire_->server_ended_ = true;
    wire_->closing_ = std::make_shared<Pending>(wire_->context_);
    wire_->closing_->done.swap(handler);  // not assigned: that recurses without end in Asio 1.26
    wire_->closing_->timer.expires_after(std::chrono::seconds(1));
    wire_->closing_->timer.async_wait([wire = wire_](error_code error) {
      if (!error) wire->server_closed();
    });
    if (wire_->end_delivered_) wire_->server_closed();
  }
  void close() noexcept override { wire_->server_closed(); }

 private:
  std::shared_ptr<Pending> begin(ByteStream::TransferHandler handler) {
    auto pending = std::make_shared<Pending>(wire_->context_);
    pending->transfer.swap(handler);
    return pending;
  }
  void cancellable(const std::shared_ptr<Pending>& pending, std::shared_ptr<Pending> Wire::* which) {
    auto slot = asio::get_associated_cancellation_slot(pending->transfer);
    if (!slot.is_connected()) return;
    slot.assign([wire = std::weak_ptr<Wire>(wire_), weak = std::weak_ptr<Pending>(pending), which](asio::cancellation_type) {
      const auto held = wire.lock();
      const auto still = weak.lock();
      if (held && still && (*held).*which == still) finish(held->context_, (*held).*which, asio::error::operation_aborted, 0);
    });
  }

  std::shared_ptr<Wire> wire_;
};

ByteStream Wire::server_side() { return ByteStream(std::make_shared<Carrier>(shared_from_this())); }

std::string Wire::receive(std::size_t most) {
  std::string taken = to_client_.substr(0, most);
  to_client_.erase(0, taken.size());
  complete_write();
  return taken;
}

void Wire::close(bool reset) {
  client_ended_ = true;
  reset_ = reset_ || reset;
  if (reset_) to_server_.clear();
}

void Wire::deliver(std::size_t most) {
  const std::size_t count = std::min(most, to_server_.size());
  if (!server_ended_ && !server_closed_) arrived_ += to_server_.substr(0, count);
  to_server_.erase(0, count);
  if (client_ended_ && to_server_.empty()) end_delivered_ = true;
  complete_read();
  if (end_delivered_ && reset_) complete_write();
  if (end_delivered_ && closing_) server_closed();
}

void Wire::sever() {
  server_ended_ = server_closed_ = true;
  const auto reading = std::exchange(reading_, nullptr), writing = std::exchange(writing_, nullptr),
             closing = std::exchange(closing_, nullptr);
}

void Wire::complete_read() {
  if (!reading_) return;
  if (server_closed_) return finish(context_, reading_, asio::error::operation_aborted, 0);
  if (end_delivered_ && reset_) return finish(context_, reading_, asio::error::connection_reset, 0);
  if (!arrived_.empty() || reading_->into->begin() == reading_->into->end()) {
    const std::size_t count = asio::buffer_copy(*reading_->into, asio::buffer(arrived_));
    arrived_.erase(0, count);
    return finish(context_, reading_, error_code(), count);
  }
  if (end_delivered_) finish(context_, reading_, asio::error::eof, 0);
}

void Wire::complete_write() {
  if (!writing_) return;
  if (server_closed_) return finish(context_, writing_, asio::error::operation_aborted, 0);
  if (end_delivered_ && reset_) return finish(context_, writing_, asio::error::broken_pipe, 0);
  const std::size_t room = window_ - std::min(window_, to_client_.size());
  if (room == 0) return;
  std::string bytes(std::min(room, asio::buffer_size(*writing_->from)), '\0');
  asio::buffer_copy(asio::buffer(bytes), *writing_->from);
  to_client_ += bytes;
  finish(context_, writing_, error_code(), bytes.size());
}

void Wire::server_closed() {
  server_ended_ = server_closed_ = true;
  complete_read();
  complete_write();
  const auto closing = std::exchange(closing_, nullptr);
  if (!closing) return;
  closing->timer.cancel();
  asio::post(context_, asio::append(std::move(closing->done), error_code()));
}

}  // namespace millrace::simulated
