// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace millrace {

/// Time of an executor: nanoseconds since it started. No wall clock takes part in any decision.
using TimePoint = std::chrono::nanoseconds;
using Duration = std::chrono::nanoseconds;

/// Something an executor runs once for each `post`. Intrusive: it belongs to its poster, must live until it ran,
/// and must not be posted again before.
class Runnable {
 public:
  /// Runs on a thread of the executor. May destroy the runnable.
  virtual void execute() noexcept = 0;

 protected:
  Runnable() = default;
  ~Runnable() = default;
  Runnable(const Runnable&) = delete;
  Runnable& operator=(const Runnable&) = delete;

 private:
  friend class RunnableQueue;
  friend class SeededExecutor;
  Runnable* next_ = nullptr;
  std::uint64_t priority_ = 0;  // of the PCT policy, given at the first post
};

/// First in, first out. Not thread-safe.
class RunnableQueue {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  void push(Runnable& runnable) noexcept {
    runnable.next_ = nullptr;
    (first_ == nullptr ? first_ : last_->next_) = &runnable;
    last_ = &runnable;
  }
  /// Null when empty.
  Runnable* pop() noexcept {
    Runnable* front = first_;
    if (front != nullptr) first_ = front->next_;
    return front;
  }
  /// Adds everything of `other`, which is empty afterwards.
  void append(RunnableQueue& other) noexcept {
    if (other.empty()) return;
    (first_ == nullptr ? first_ : last_->next_) = other.first_;
    last_ = other.last_;
    other.first_ = nullptr;
  }
  /// Takes everything.
  RunnableQueue take() noexcept {
    RunnableQueue all = *this;
    first_ = nullptr;
    return all;
  }

 private:
  Runnable* first_ = nullptr;
  Runnable* last_ = nullptr;
};

/// Something that fires once at a time of an executor. Intrusive: must live until it fired or was cancelled.
class Timer {
 public:
  /// Runs on a thread of the executor, with no lock held. May destroy the timer.
  virtual void fire() noexcept = 0;

 protected:
  Timer() = default;
  ~Timer() = default;
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  friend class TimerQueue;
  TimePoint when_{};
  std::uint64_t order_ = 0;
  Timer* child_ = nullptr;
  Timer* next_ = nullptr;
  Timer* previous_ = nullptr;
  bool queued_ = false;
};

/// Where tasks run: an unbounded queue of things that their owners keep alive, and a clock. Posting allocates nothing.
/// Thread safety: every member may be called from any thread, unless an executor says otherwise.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Runs `runnable` soon on a thread of this executor, never inside this call.
  virtual void post(Runnable& runnable) noexcept = 0;
  /// True on a thread that is now running something for this executor.
  virtual bool running_in_this_thread() const noexcept = 0;
  virtual TimePoint now() const noexcept = 0;
  /// The time `duration` from now, and at most `last_time`.
  TimePoint after(Duration duration) const noexcept {
    const TimePoint from = now();
    return from + std::min(duration, last_time - from);
  }
  /// A time in 146 years: its sum with the time at which a steady clock began is still a time.
  static constexpr TimePoint last_time = TimePoint::max() / 2;
  /// Fires `timer` once `now() >= when`; timers of one instant fire in the order in which they were added.
  virtual void add_timer(Timer& timer, TimePoint when) noexcept = 0;
  /// Takes a timer back. False when it fired or is just firing on another thread.
  virtual bool cancel_timer(Timer& timer) noexcept = 0;

  /// True when at most one thing of this executor runs at a time: tasks on it need no locks among themselves.
  virtual bool serial() const noexcept { return false; }

  enum class Drive { own_threads, progressed, idle };
  /// For a blocking wait on this executor: one that runs only on request runs something now and says `progressed`, or
  /// `idle` when there is nothing to run at the present time. One that has threads of its own does nothing and says
  /// `own_threads`.
  virtual Drive drive() { return Drive::own_threads; }

 protected:
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
};

/// Marks the calling thread, for the life of this object, as one that runs `executor`: blocking calls refuse such a
/// thread.
class RuntimeThread {
 public:
  explicit RuntimeThread(const Executor& executor) noexcept;
  ~RuntimeThread();
  RuntimeThread(const RuntimeThread&) = delete;
  RuntimeThread& operator=(const RuntimeThread&) = delete;

  /// The innermost executor that the calling thread runs, or null.
  static const Executor* current() noexcept;

 private:
  const Executor* outer_;
};

}  // namespace millrace
