// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <utility>

#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/run.h>

namespace millrace {

/// Says whether cancellation was requested. Cheap to copy; safe to share by copy. A default-made token is never cancelled.
class CancellationToken {
 public:
  CancellationToken() noexcept = default;
  explicit CancellationToken(Ref<ScopeState> state) noexcept : state_(std::move(state)) {}
  bool cancelled() const noexcept { return state_ && state_->cancelled(); }

 private:
  Ref<ScopeState> state_;
};

/// Cancels the tasks of one scope or run from anywhere: other tasks, other threads, after they have ended. Cancellation
/// is cooperative: waits end at once, a computation goes on to its next wait or checkpoint. Cheap to copy; safe to
/// share by copy.
class CancellationSource {
 public:
  /// `run` must be alive.
  CancellationSource(Run& run, ScopeState& state) noexcept : run_(&run), state_(&state) {}
  void cancel() const noexcept { state_->cancel(); }
  CancellationToken token() const noexcept { return CancellationToken(state_); }

 private:
  Ref<Run> run_;
  Ref<ScopeState> state_;
};

/// A CancelledError that names the task; where no memory is left for its text, one that names none.
std::exception_ptr make_cancelled_error(const TaskInfo& task) noexcept;

}  // namespace millrace
