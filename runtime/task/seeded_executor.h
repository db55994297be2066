// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include <millrace/runtime/task/executor.h>
#include <millrace/runtime/task/timer_queue.h>

namespace millrace {

/// Something besides tasks that can move: a simulated device. At every decision the executor chooses among ready tasks and
/// the offers of its sources.
class ChoiceSource {
 public:
  /// The number of different things that could happen next: 0 when nothing can.
  virtual std::size_t choices() = 0;
  /// Lets the i-th of them happen.
  virtual void take(std::size_t i) = 0;

 protected:
  ~ChoiceSource() = default;
};

/// A single-threaded executor with a manual clock that replays any schedule from a seed: what runs next is drawn by the
/// seed alone, so the same program with the same seed makes the same decisions, as `trace_hash` shows. Nothing runs
/// outside `run`, `step` and `advance`, and time stands still but in `advance` or when `auto_advance` is on. Thread
/// safety: none; everything that posts to it must be on its thread.
class SeededExecutor final : public Executor {
 public:
  enum class Policy {
    random,  ///< each choice equally likely
    fifo,    ///< tasks in the order of posting; sources when no task is ready
    pct,     ///< by random priorities that change at a few random points (probabilistic concurrency testing, ASPLOS 2010)
  };
  explicit SeededExecutor(std::uint64_t seed, Policy policy = Policy::random);

  /// Sources are asked in the order in which they were added, and must live until removed.
  void add_source(ChoiceSource& source) { sources_.push_back({&source, 0}); }
  void remove_source(ChoiceSource& source);
  /// For PCT: how many changes of priority, within how many decisions. 3 in 1000 by default.
  void set_pct(std::size_t changes, std::size_t decisions);

  /// Makes one decision. False when nothing can run at the present time.
  bool step();
  /// Makes decisions until nothing can run; with `auto_advance`, until no timer is left either. Returns how many.
  std::size_t run();
  /// As `run`, then moves the clock from timer to timer, running what each lets run, until `duration` has passed.
  std::size_t advance(Duration duration);
  /// Whether `run` moves the clock to the next timer when nothing else can run. Off by default: a deadlock is found
  /// with the clock standing still.
  void auto_advance(bool on) noexcept { auto_advance_ = on; }

  /// A hash of every decision so far: among how many, and which.
  std::uint64_t trace_hash() const noexcept { return hash_; }
  std::size_t decisions() const noexcept { return decisions_; }

  void post(Runnable& runnable) noexcept override;
  bool running_in_this_thread() const noexcept override { return running_; }
  TimePoint now() const noexcept override { return now_; }
  void add_timer(Timer& timer, TimePoint when) noexcept override { timers_.add(timer, when); }
  bool cancel_timer(Timer& timer) noexcept override { return timers_.remove(timer); }
  bool serial() const noexcept override { return true; }
  Drive drive() override { return run() == 0 ? Drive::idle : Drive::progressed; }

 private:
  struct Source {
    ChoiceSource* source;
    std::uint64_t priority;
  };

  std::uint64_t draw() noexcept;
  std::size_t draw_below(std::size_t bound) noexcept { return static_cast<std::size_t>(draw() % bound); }
  void record(std::uint64_t value) noexcept;
  std::size_t count_choices();
  std::size_t pick(std::size_t count);
  std::size_t pick_by_priority();
  void perform(std::size_t index);
  void fire_due();

  std::uint64_t random_;
  Policy policy_;
  std::deque<Runnable*> ready_;
  std::vector<Source> sources_;
  std::vector<std::size_t> offered_;  // per source, in the decision being made
  std::vector<std::size_t> change_at_;
  std::uint64_t low_priority_ = 0;
  TimerQueue timers_;
  TimePoint now_{};
  bool auto_advance_ = false;
  bool running_ = false;
  std::uint64_t hash_ = 0x6d696c6c72616365;
  std::size_t decisions_ = 0;
};

}  // namespace millrace
