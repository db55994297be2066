// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace millrace {

class Timeline;

/// A waiter for a point: intrusive, owned by the waiting side, no allocation.
/// A waiter must stay alive until `complete` was called or `Timeline::remove` returned true.
class Waiter {
 public:
  /// Called once, on the thread that advanced or failed the timeline, with no lock held. `error` is null when the point was
  /// reached, else what the timeline failed with. Must not block and must not throw; it may destroy the waiter.
  virtual void complete(std::exception_ptr error) noexcept = 0;

 protected:
  Waiter() = default;
  ~Waiter() = default;
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

 private:
  friend class Timeline;
  Waiter* next_ = nullptr;
  std::uint64_t value_ = 0;
};

/// A counter that only grows: a stream's position, an array's watermark, a collective, a task. All members are thread-safe.
class Timeline {
 public:
  Timeline() = default;
  virtual ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// The highest value reached so far.
  std::uint64_t reached() const noexcept { return reached_.load(std::memory_order_acquire); }
  /// The error that the timeline failed with, or null. Values reached before the failure stay reached.
  std::exception_ptr error() const;

  /// Registers `waiter` for `value`. False when the value is already reached or the timeline failed: then `complete` is not called.
  bool add(Waiter& waiter, std::uint64_t value);
  /// Takes a waiter back. False when it was completed or is being completed by another thread: then `complete` was or will be called.
  bool remove(Waiter& waiter) noexcept;

  /// Raises the counter to `value` (lower values are ignored) and completes the waiters it reaches, in order of registration.
  void advance(std::uint64_t value) noexcept;
  /// Fails the timeline: every waiter that is left, and every later one, gets `error`. The first error stays.
  void fail(std::exception_ptr error) noexcept;

 protected:
  /// A waiter is about to wait for `value`, which was not reached a moment ago. A device, whose progress is not seen unless it is asked for,
  /// arranges here that `advance` will be called. No lock is held. Must not throw: a failure fails the timeline.
  virtual void asked(std::uint64_t value) { static_cast<void>(value); }
  /// See `Point::expect`.
  virtual void expected(std::uint64_t value) { static_cast<void>(value); }

 private:
  friend class Point;
  Waiter* take(std::uint64_t up_to) noexcept;

  std::atomic<std::uint64_t> reached_{0};
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  Waiter* first_ = nullptr;
};

/// (timeline, value): a moment that will come. A default-made point is always reached. Copies are cheap; safe to share by copy.
class Point {
 public:
  Point() noexcept = default;
  Point(std::shared_ptr<Timeline> timeline, std::uint64_t value) noexcept : timeline_(std::move(timeline)), value_(value) {}

  /// True once the value is reached. A failed timeline never becomes reached: see `error`.
  bool reached() const noexcept { return timeline_ == nullptr || timeline_->reached() >= value_; }
  /// Null, or what the timeline failed with before it reached the value.
  std::exception_ptr error() const { return reached() ? nullptr : timeline_->error(); }
  /// Throws `error`, if any, as an object of the caller's own.
  void check() const;
  /// Others will ask for this point, maybe after its stream went on: a device remembers where it is, so that they wait for no more than it.
  void expect() const {
    if (!reached()) timeline_->expected(value_);
  }
  /// Blocks the calling thread until reached; rethrows an error. For plain host code and tests; inside a task use `co_await`.
  void wait() const;

  const std::shared_ptr<Timeline>& timeline() const noexcept { return timeline_; }
  std::uint64_t value() const noexcept { return value_; }
  friend bool operator==(const Point&, const Point&) = default;

 private:
  std::shared_ptr<Timeline> timeline_;
  std::uint64_t value_ = 0;
};

}  // namespace millrace
