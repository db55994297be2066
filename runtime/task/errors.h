// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include <millrace/tensor/error.h>

namespace millrace {

MILLRACE_ERROR(CancelledError, Error);  ///< a wait or a step boundary of a task whose scope was cancelled
MILLRACE_ERROR(DeadlineError, Error);   ///< work that did not end within its deadline
MILLRACE_ERROR(BlockingError, Error);   ///< a blocking call on a thread that must run tasks
MILLRACE_ERROR(EmptyTaskError, Error);  ///< a task or handle that is awaited or started, but holds no work (any more)

/// Tasks of one run that wait for each other, or for an event that no task will cause. Every such waiter fails with one of these.
class DeadlockError : public Error {
 public:
  struct Waiter {
    std::string task;     ///< name of the task
    std::string awaited;  ///< what it waits for, as the awaited thing describes itself
  };
  DeadlockError(const std::string& what, std::vector<Waiter> waiters) : Error(what), waiters_(std::move(waiters)) {}
  std::exception_ptr copy() const override {
    return typeid(*this) == typeid(DeadlockError) ? std::make_exception_ptr(DeadlockError(*this)) : nullptr;
  }
  /// All tasks of the set, in the order in which they began to wait.
  const std::vector<Waiter>& waiters() const noexcept { return waiters_; }

 private:
  std::vector<Waiter> waiters_;
};

}  // namespace millrace
