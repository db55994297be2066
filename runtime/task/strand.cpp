// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/strand.h>

namespace millrace {

void Strand::post(Runnable& runnable) noexcept {
  {
    const std::lock_guard lock(mutex_);
    queue_.push(runnable);
    if (posted_) return;
    posted_ = true;
  }
  below_.post(*this);
}

/// One at a time, then back to the end of the queue below, so that strands share their executor fairly.
void Strand::execute() noexcept {
  const std::shared_ptr<Strand> self = shared_from_this();
  Runnable* next = nullptr;
  {
    const std::lock_guard lock(mutex_);
    next = queue_.pop();
  }
  next->execute();
  {
    const std::lock_guard lock(mutex_);
    posted_ = !queue_.empty();
    if (!posted_) return;
  }
  below_.post(*this);
}

}  // namespace millrace
