// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/served_place.h>

#include <chrono>
#include <new>
#include <utility>

#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/post.hpp>

#include <millrace/runtime/task/asio.h>

namespace millrace {

template <class T>
struct ServedPlace::HandlerMemory {
  using value_type = T;
  explicit HandlerMemory(ServedPlace& of) noexcept : place(&of) {}
  template <class U>
  HandlerMemory(const HandlerMemory<U>& other) noexcept : place(other.place) {}
  T* allocate(std::size_t n) {
    if (n * sizeof(T) <= place->handler_.size()) return reinterpret_cast<T*>(place->handler_.data());
    return static_cast<T*>(::operator new(n * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t) noexcept {
    if (static_cast<void*>(memory) != place->handler_.data()) ::operator delete(memory);
  }
  bool operator==(const HandlerMemory&) const = default;

  ServedPlace* place;
};

void ServedPlace::pump_soon() {
  count_waiting();
  if (!batcher().ready()) return;
  if (pump_posted_) return;
  asio::post(context_, [self = shared_from_this()] {
    self->pump_posted_ = false;
    self->pump();
  });
  pump_posted_ = true;  // behind a call that may throw
}

void ServedPlace::starved() {
  try {
    retry_.expires_after(std::chrono::milliseconds(10));
    retry_.async_wait([place = weak_from_this()](boost::system::error_code error) {
      if (const auto self = place.lock(); self && !error) self->pump();
    });
  } catch (const std::bad_alloc&) {  // the next message of anybody tries again
  }
}

void ServedPlace::tick_taken() noexcept {
  self_ = shared_from_this();
  work_.emplace(context_.get_executor());
}

void ServedPlace::tick_done() noexcept {
  // The context's thread lets go of the place: the last to do so joins the thread of ticks, which cannot join itself.
  asio::io_context& io = context_;
  const HandlerMemory<void> memory(*this);
  asio::post(io, asio::bind_allocator(memory, [self = std::move(self_), work = std::move(*work_)] { self->finish(); }));
}

}  // namespace millrace
