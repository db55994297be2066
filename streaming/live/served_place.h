// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <millrace/streaming/live/live_place.h>

namespace millrace {

/// A place of a server: its batcher lives on the thread that runs an io_context. Held by shared_ptr, since a tick that is out keeps it.
class ServedPlace final : public LivePlace, public std::enable_shared_from_this<ServedPlace> {
 public:
  ServedPlace(boost::asio::io_context& context, const std::shared_ptr<const Recurrence>& recurrence, Options options)
      : LivePlace(recurrence, std::move(options)), context_(context) {}

  /// As `pump`, behind what is there to be handled already: all messages of one round of the sockets share a tick.
  void pump_soon();

  /// Called when a tick came back and no other followed, and when the place was lost.
  std::function<void()> on_idle;
  std::function<void()> on_lost;

 private:
  void tick_taken() noexcept override;
  void tick_done() noexcept override;
  void became_idle() override {
    if (on_idle) on_idle();
  }
  void starved() override;
  void became_lost() override {
    if (on_lost) on_lost();
  }

  /// Memory of the one handler that takes a tick back: the thread of ticks has none of Asio's to use again.
  template <class T>
  struct HandlerMemory;

  boost::asio::io_context& context_;
  bool pump_posted_ = false;
  boost::asio::steady_timer retry_{context_};
  std::shared_ptr<ServedPlace> self_;  // while a tick is out
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_;
  alignas(std::max_align_t) std::array<std::byte, 256> handler_;
};

}  // namespace millrace
