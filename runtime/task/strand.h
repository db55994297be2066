// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>

#include <millrace/runtime/task/executor.h>

namespace millrace {

/// Runs things one after the other on another executor, in the order of posting, whichever of its threads that takes:
/// tasks on one strand need no locks among themselves. The executor below must outlive the strand. Thread safety: every
/// member, from any thread.
class Strand final : public Executor, private Runnable, public std::enable_shared_from_this<Strand> {
 public:
  /// Shared, since the thread that runs the last thing still holds it when that thing's owner goes on.
  static std::shared_ptr<Strand> on(Executor& below) { return std::shared_ptr<Strand>(new Strand(below)); }

  void post(Runnable& runnable) noexcept override;
  bool running_in_this_thread() const noexcept override { return below_.running_in_this_thread(); }
  TimePoint now() const noexcept override { return below_.now(); }
  void add_timer(Timer& timer, TimePoint when) noexcept override { below_.add_timer(timer, when); }
  bool cancel_timer(Timer& timer) noexcept override { return below_.cancel_timer(timer); }
  Drive drive() override { return below_.drive(); }
  bool serial() const noexcept override { return true; }

 private:
  explicit Strand(Executor& below) noexcept : below_(below) {}
  void execute() noexcept override;

  Executor& below_;
  std::mutex mutex_;
  RunnableQueue queue_;
  bool posted_ = false;
};

}  // namespace millrace
