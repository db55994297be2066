// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <millrace/streaming/live/live_model.h>

#include "event_loop.h"

namespace millrace::python {

/// Tasks of one event loop that wait for the results of one session. A step that gives results to many sessions wakes the event loop once; the tasks then
/// run inside one callback of the loop, without a callback and a future for each.
///
/// `next` is a coroutine without a frame. It gives an object for each wait, `_ResultsWait`, to `asyncio.Task`, which takes it for a future. Cancelling the
/// task ends the wait and takes no results.
class ResultsNews final : public LiveReader, public LoopNews, public std::enable_shared_from_this<ResultsNews> {
 public:
  explicit ResultsNews(std::shared_ptr<LoopExecutor> loop) : loop_(std::move(loop)) {}

  /// Any thread, as `LiveReader` has it.
  void on_news() noexcept override { loop_->post(shared_from_this()); }
  void deliver() override;

  /// The results of a session that are there, None at its end; a null object where there is nothing yet, and then `on_news` follows.
  using Take = nb::object (*)(nb::handle session);
  /// A coroutine of Python that gives the next results of `session`; at the end None, or StopAsyncIteration where it is an `__anext__`. `loop` is the
  /// event loop of asyncio; `waits`, a set that it keeps alive, holds what a task waits for, so that the task lives. With the GIL held, as what follows.
  nb::object next(nb::handle session, Take take, nb::handle loop, nb::handle waits, bool anext);
  /// A wait that ends with the next news.
  nb::object wait(nb::handle loop, nb::handle waits);
  void add(PyObject* wait) { waiting_.push_back(wait); }
  void remove(PyObject* wait) noexcept;

 private:
  const std::shared_ptr<LoopExecutor> loop_;
  std::vector<PyObject*> waiting_;  // borrowed: a wait that goes removes itself
};

/// The types of Python of what `next` and `wait` make; before either is called.
void make_results_types();

}  // namespace millrace::python
