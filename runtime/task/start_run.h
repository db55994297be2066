// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <millrace/runtime/task/cancellation.h>
#include <millrace/runtime/task/task.h>
#include <millrace/tensor/point.h>

namespace millrace {

/// The outermost task of a run. `done(Outcome<T>)` is called once, on a thread of the executor, when the run has ended
/// and nothing of it is left; it must not throw.
template <class T, class Done>
class RootTask final : public TaskInfo {
 public:
  static void start(Executor& executor, Ref<Run> run, task<T> work, Done done) {
    work.check_unstarted();
    auto* root = new RootTask(executor, std::move(run), std::move(work), std::move(done));
    root->kept_run_->enter();
    root->post(root->work_.begin_body(*root));
  }

 private:
  RootTask(Executor& executor, Ref<Run> run, task<T> work, Done done)
      : TaskInfo(executor, *run, run->root(), std::string(run->name())),
        kept_run_(std::move(run)),
        work_(std::move(work)),
        done_(std::move(done)) {}

  void complete() noexcept override {
    Outcome<T> outcome = work_.take_outcome();
    if (std::exception_ptr orphan = take_orphan_error(); orphan != nullptr && outcome.error() == nullptr) outcome.set_error(orphan);
    Ref<Run> run = std::move(kept_run_);
    Done done = std::move(done_);
    delete this;
    run->leave();
    run = Ref<Run>();
    done(std::move(outcome));
  }

  Ref<Run> kept_run_;
  task<T> work_;
  Done done_;
};

/// Throws BlockingError, naming `what`, on a thread that runs tasks of any executor.
void throw_on_runtime_thread(const std::string& what);

/// The untyped part of `Running`: a timeline that reaches 1 when the run has ended, or fails with its error.
class RunningState : public Timeline, public std::enable_shared_from_this<RunningState> {
 public:
  explicit RunningState(Executor& executor, Ref<Run> run) noexcept : executor_(&executor), run_(std::move(run)) {}
  Run& run() const noexcept { return *run_; }
  bool ended() const { return reached() != 0 || error() != nullptr; }
  /// Blocks until the run has ended. Throws BlockingError on a thread that runs tasks. An executor that runs only when
  /// request is run by this call; if it comes to rest before the run has ended (its clock stands still), the run is
  /// cancelled and BlockingError says so.
  void wait_until_ended();

 private:
  bool drive_until_idle();

  Executor* executor_;
  Ref<Run> run_;
};

/// A run that was started. Its end is a point, for streams and for tasks of other runs. Destroying the handle cancels
/// the run, which ends by itself on its executor. Movable.
template <class T>
class [[nodiscard]] Running {
  struct State final : RunningState {
    using RunningState::RunningState;
    Outcome<T> outcome;
  };

 public:
  Running(Running&&) noexcept = default;
  Running& operator=(Running&& other) noexcept {
    if (state_ != nullptr) cancel();
    state_ = std::move(other.state_);
    return *this;
  }
  ~Running() {
    if (state_ != nullptr) cancel();
  }

  Run& run() const noexcept { return state_->run(); }
  void cancel() noexcept { state_->run().cancel(); }
  /// True once the run has ended, well or not.
  bool ended() const { return state_->ended(); }
  /// Reached when the run has ended well; fails with its error.
  Point point() const noexcept { return Point(state_, 1); }
  /// Waits as `RunningState::wait_until_ended` says; moves the result out, or throws the error. Once.
  T get() {
    if (state_ == nullptr) throw_empty_task(false);
    state_->wait_until_ended();
    return state_->outcome.take();
  }

  static Running start(Executor& executor, task<T> work, std::string name, Tracer* tracer) {
    Ref<Run> run(new Run(std::move(name), tracer));
    auto state = std::make_shared<State>(executor, run);
    RootTask<T, Finish>::start(executor, std::move(run), std::move(work), Finish(state));
    return Running(std::move(state));
  }

 private:
  explicit Running(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  class Finish {
   public:
    explicit Finish(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
    void operator()(Outcome<T> outcome) noexcept {
      std::exception_ptr error = outcome.error();
      state_->outcome = std::move(outcome);
      if (error == nullptr) {
        state_->advance(1);
      } else {
        state_->fail(std::move(error));
      }
    }

   private:
    std::shared_ptr<State> state_;
  };

  std::shared_ptr<State> state_;
};

/// Starts `work` as the root of a run of its own on `executor`. EmptyTaskError for a task without work.
template <class T>
Running<T> start_run(Executor& executor, task<T> work, std::string name = "run", Tracer* tracer = nullptr) {
  return Running<T>::start(executor, std::move(work), std::move(name), tracer);
}

}  // namespace millrace
