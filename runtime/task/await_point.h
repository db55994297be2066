// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <utility>

#include <millrace/runtime/task/wait.h>
#include <millrace/tensor/point.h>

namespace millrace {

/// Waits for a point: `co_await ready(point)`. Goes on at once when it is reached, else through the task's executor,
/// whichever thread advanced the timeline; throws the error of the timeline. An external wait of the run; cancellable.
class PointWait final : public ExternalWait, private Waiter {
 public:
  explicit PointWait(Point point) noexcept : point_(std::move(point)) {}

  bool await_ready() const noexcept { return point_.reached(); }
  void await_resume() const {
    Wait::await_resume();
    point_.check();
  }

 private:
  Armed arm() noexcept override { return point_.timeline()->add(*this, point_.value()) ? Armed::waiting : Armed::ready; }
  bool disarm() noexcept override { return point_.timeline()->remove(*this); }
  void complete(std::exception_ptr) noexcept override { wake(); }  // the point keeps the error: see await_resume
  std::string describe() const override { return "a point, value " + std::to_string(point_.value()) + " of its timeline"; }

  Point point_;
};

inline PointWait ready(Point point) noexcept { return PointWait(std::move(point)); }

}  // namespace millrace
