// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace/runtime/task/wait.h>

namespace millrace {

/// Waits for a time of the task's executor: see `this_task::sleep_for`.
class SleepWait final : public ExternalWait, private Timer {
 public:
  explicit SleepWait(Duration duration) noexcept : duration_(duration) {}

 private:
  Armed arm() noexcept override {
    Executor& executor = task().executor();
    executor.add_timer(*this, executor.after(duration_));
    return Armed::waiting;
  }
  bool disarm() noexcept override { return task().executor().cancel_timer(*this); }
  void fire() noexcept override { wake(); }
  std::string describe() const override { return "a timer of " + std::to_string(duration_.count()) + " ns"; }

  Duration duration_;
};

}  // namespace millrace
