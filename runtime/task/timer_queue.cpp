// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/timer_queue.h>

#include <utility>

namespace millrace {

Timer* TimerQueue::merge(Timer* a, Timer* b) noexcept {
  if (a == nullptr) return b;
  if (b == nullptr) return a;
  if (b->when_ < a->when_ || (b->when_ == a->when_ && b->order_ < a->order_)) std::swap(a, b);
  b->next_ = a->child_;
  b->previous_ = a;
  if (a->child_ != nullptr) a->child_->previous_ = b;
  a->child_ = b;
  return a;
}

// Two passes, without recursion: pairs from the left, then all pairs from the right.
Timer* TimerQueue::merge_siblings(Timer* first) noexcept {
  Timer* pairs = nullptr;
  while (first != nullptr) {
    Timer* a = first;
    Timer* b = a->next_;
    first = b == nullptr ? nullptr : b->next_;
    a->next_ = nullptr;
    if (b != nullptr) b->next_ = nullptr;
    Timer* pair = merge(a, b);
    pair->next_ = pairs;
    pairs = pair;
  }
  Timer* root = nullptr;
  while (pairs != nullptr) {
    Timer* pair = pairs;
    pairs = pair->next_;
    pair->next_ = nullptr;
    root = merge(root, pair);
  }
  if (root != nullptr) root->previous_ = nullptr;
  return root;
}

void TimerQueue::add(Timer& timer, TimePoint when) noexcept {
  timer.when_ = when;
  timer.order_ = added_++;
  timer.child_ = timer.next_ = timer.previous_ = nullptr;
  timer.queued_ = true;
  root_ = merge(root_, &timer);
}

bool TimerQueue::remove(Timer& timer) noexcept {
  if (!timer.queued_) return false;
  timer.queued_ = false;
  Timer* below = merge_siblings(timer.child_);
  if (&timer == root_) {
    root_ = below;
    return true;
  }
  (timer.previous_->child_ == &timer ? timer.previous_->child_ : timer.previous_->next_) = timer.next_;
  if (timer.next_ != nullptr) timer.next_->previous_ = timer.previous_;
  root_ = merge(root_, below);
  return true;
}

Timer* TimerQueue::pop_due(TimePoint now) noexcept {
  if (root_ == nullptr || root_->when_ > now) return nullptr;
  Timer* due = root_;
  remove(*due);
  return due;
}

}  // namespace millrace
