// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/point.h>

#include <condition_variable>

#include <millrace/tensor/error.h>

namespace millrace {

Timeline::~Timeline() = default;

std::exception_ptr Timeline::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

bool Timeline::add(Waiter& waiter, std::uint64_t value) {
  if (reached() < value) asked(value);
  const std::lock_guard lock(mutex_);
  if (error_ || reached() >= value) return false;
  waiter.value_ = value;
  waiter.next_ = nullptr;
  Waiter** end = &first_;
  while (*end != nullptr) end = &(*end)->next_;
  *end = &waiter;
  return true;
}

bool Timeline::remove(Waiter& waiter) noexcept {
  const std::lock_guard lock(mutex_);
  for (Waiter** at = &first_; *at != nullptr; at = &(*at)->next_) {
    if (*at != &waiter) continue;
    *at = waiter.next_;
    return true;
  }
  return false;
}

/// Unlinks the waiters whose value is at most `up_to`, in order; the mutex is held.
Waiter* Timeline::take(std::uint64_t up_to) noexcept {
  Waiter* taken = nullptr;
  Waiter** end = &taken;
  for (Waiter** at = &first_; *at != nullptr;) {
    Waiter* waiter = *at;
    if (waiter->value_ > up_to) {
      at = &waiter->next_;
      continue;
    }
    *at = waiter->next_;
    waiter->next_ = nullptr;
    *end = waiter;
    end = &waiter->next_;
  }
  return taken;
}

void Timeline::advance(std::uint64_t value) noexcept {
  Waiter* taken = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (error_ || value <= reached()) return;
    reached_.store(value, std::memory_order_release);
    taken = take(value);
  }
  while (taken != nullptr) {
    Waiter* next = taken->next_;  // complete() may destroy the waiter
    taken->complete(nullptr);
    taken = next;
  }
}

void Timeline::fail(std::exception_ptr error) noexcept {
  Waiter* taken = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = error;
    taken = take(~std::uint64_t{0});
  }
  while (taken != nullptr) {
    Waiter* next = taken->next_;
    taken->complete(error);
    taken = next;
  }
}

void Point::check() const {
  if (const std::exception_ptr failed = error()) rethrow_own(failed);
}

void Point::wait() const {
  struct Blocked final : Waiter {
    void complete(std::exception_ptr) noexcept override {
      const std::lock_guard lock(mutex);
      done = true;
      changed.notify_one();
    }
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  if (!reached()) {
    Blocked blocked;
    if (timeline_->add(blocked, value_)) {
      std::unique_lock lock(blocked.mutex);
      blocked.changed.wait(lock, [&] { return blocked.done; });
    }
  }
  check();
}

}  // namespace millrace
