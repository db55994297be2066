// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/scope.h>

namespace millrace {

class Scope::Child final : public TaskInfo {
 public:
  Child(Executor& executor, Run& run, ScopeState& scope, task<void>&& work, std::string&& name) noexcept
      : TaskInfo(executor, run, scope, std::move(name)), work_(std::move(work)) {}

  void begin() noexcept {
    scope().child_begins();
    post(work_.begin_body(*this));
  }

 private:
  void complete() noexcept override {
    std::exception_ptr error = work_.take_outcome().error();
    if (error == nullptr) error = take_orphan_error();
    ScopeState& joined_by = scope();
    delete this;
    joined_by.child_ended(std::move(error));
  }

  task<void> work_;
};

Scope::Scope(TaskInfo& owner, Cancellation cancellation)
    : owner_(owner), state_(ScopeState::open_in(owner, cancellation == Cancellation::inherited)) {}

TaskInfo& Scope::make(Executor& executor, task<void>&& work, std::string&& name) {
  work.check_unstarted();
  return *new Child(executor, owner_.run(), *state_, std::move(work), std::move(name));
}

void Scope::begin(TaskInfo& child) noexcept { static_cast<Child&>(child).begin(); }

std::vector<std::exception_ptr> Scope::later_errors() const { return state_->later_errors(); }

JoinWait::Armed JoinWait::arm() noexcept {
  if (state_.state_.fetch_or(ScopeState::joining, std::memory_order_acq_rel) / ScopeState::one_child != 0) {
    state_.joiner_ = this;
    return Armed::waiting;
  }
  state_.state_.fetch_and(~ScopeState::joining, std::memory_order_relaxed);
  return Armed::ready;
}

std::string JoinWait::describe() const { return "the end of its " + std::to_string(state_.live()) + " children"; }

void JoinWait::await_resume() const {
  Wait::await_resume();
  const std::exception_ptr error = state_.first_error();
  if (error != nullptr) {
    thrown_ = true;
    std::rethrow_exception(error);
  }
  if (state_.child_was_cancelled_ && task().cancelled()) std::rethrow_exception(make_cancelled_error(task()));
}

}  // namespace millrace
