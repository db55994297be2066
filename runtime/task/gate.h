// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include <millrace/runtime/task/wait.h>

namespace millrace {

/// Opens once, or fails once; tasks wait for it, before or after: `co_await gate.wait()`. They wait for another task of
/// their run (a `Blocker`), are cancellable and go on through their executors in the order in which they came. A gate
/// must outlive its waiters and must not be destroyed while `open` runs. An event from outside the run is awaited as
/// a point instead, or under an `ExternalHold`: else the run may be taken for deadlocked. Thread-safe.
class Gate {
 public:
  /// `what` names the gate in errors: "the end of task 'a'". `writer`, if known, is the live task that will open it.
  explicit Gate(std::string what = "a gate", TaskInfo* writer = nullptr) : what_(std::move(what)), writer_(writer) {}
  /// As above, where the gate must exist before the task: call it before the first wait.
  void set_writer(TaskInfo& writer) noexcept { writer_ = &writer; }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  bool is_open() const {
    std::lock_guard lock(mutex_);
    return settled_;
  }
  /// Wakes all who wait. Later calls, of `fail` too, do nothing.
  void open() noexcept { settle(nullptr); }
  /// Every wait, earlier and later, throws `error`.
  void fail(std::exception_ptr error) noexcept { settle(std::move(error)); }

  class GateWait : public Blocker {
   public:
    explicit GateWait(Gate& gate) noexcept : gate_(gate) {}
    void await_resume() const {
      Wait::await_resume();
      if (gate_.error_ != nullptr) std::rethrow_exception(gate_.error_);
    }

   private:
    friend class Gate;
    Armed arm() noexcept override { return gate_.add(*this) ? Armed::waiting : Armed::ready; }
    bool disarm() noexcept override { return gate_.remove(*this); }
    std::string describe() const override { return gate_.what_; }
    bool indirect() const noexcept override { return true; }
    void writers(WriterVisitor& visitor) const override {
      if (gate_.writer_ != nullptr) visitor.visit(*gate_.writer_);
    }

    Gate& gate_;
    GateWait* next_ = nullptr;
  };
  GateWait wait() noexcept { return GateWait(*this); }

 private:
  bool add(GateWait& wait) noexcept {
    std::lock_guard lock(mutex_);
    if (settled_) return false;
    GateWait** at = &first_;
    while (*at != nullptr) at = &(*at)->next_;
    *at = &wait;
    return true;
  }
  bool remove(GateWait& wait) noexcept {
    std::lock_guard lock(mutex_);
    for (GateWait** at = &first_; *at != nullptr; at = &(*at)->next_) {
      if (*at != &wait) continue;
      *at = wait.next_;
      return true;
    }
    return false;
  }
  void settle(std::exception_ptr error) noexcept {
    GateWait* waiting = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (settled_) return;
      settled_ = true;
      error_ = std::move(error);
      waiting = std::exchange(first_, nullptr);
    }
    while (waiting != nullptr) std::exchange(waiting, waiting->next_)->wake();
  }

  const std::string what_;
  TaskInfo* writer_;
  mutable std::mutex mutex_;
  bool settled_ = false;
  std::exception_ptr error_;
  GateWait* first_ = nullptr;
};

}  // namespace millrace
