// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include <millrace/runtime/task/run.h>
#include <millrace/runtime/task/start_run.h>
#include <millrace/runtime/task/thread_executor.h>

#include "bind.h"
#include "gil.h"

namespace millrace::python {

/// Threads that are made while one lives take no signals: those are for the thread that Python handles them on.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  const sigset_t& before() const noexcept { return before_; }

 private:
  sigset_t before_;
};

/// Calls `f` without the GIL, where the thread has it: for an end that waits for a thread of the library.
template <class F>
void without_gil(F f) {
  if (nb::is_alive() && PyGILState_Check() != 0) {
    const GilReleased released;
    f();
  } else {
    f();
  }
}

/// The number of forks between this process and the one that loaded the module: threads do not come along.
int forks() noexcept;
void count_forks();

/// The threads that runs are on. Made when a program with loops is first run, and again in a child process; ended by `shut_down`.
class Engine {
 public:
  /// With the GIL held. CancelledError once the engine was shut down, on the thread that did it; other threads block for ever.
  static Engine& current();

  /// Starts `work` as the run `run`. `done(Outcome<T>)` is called on a thread of the engine, without the GIL, before the run counts as ended.
  template <class T, class Done>
  void start(Ref<Run> run, task<T> work, Done done) {
    start_on(*executor_, std::move(run), std::move(work), std::move(done));
  }
  /// `start` on another executor, whose threads call `done`.
  template <class T, class Done>
  void start_on(Executor& executor, Ref<Run> run, task<T> work, Done done) {
    add(run.get());
    Run* const known = run.get();
    RootTask<T, Ending<T, Done>>::start(executor, std::move(run), std::move(work), Ending<T, Done>(this, known, std::move(done)));
  }
  Executor& executor() noexcept { return *executor_; }

  /// Runs of this process that have not ended.
  static std::size_t live_runs();
  /// Cancels all runs, waits for their ends, and ends the threads. Nothing can be run any more. A daemon thread in a run, or that begins one, blocks for
  /// ever.
  static void shut_down();

 private:
  template <class T, class Done>
  class Ending {
   public:
    Ending(Engine* engine, Run* run, Done done) noexcept : engine_(engine), run_(run), done_(std::move(done)) {}
    void operator()(Outcome<T> outcome) noexcept {
      const Ref<Run> run = std::move(run_);  // `shut_down` looks at the runs that are not removed
      done_(std::move(outcome));
      engine_->remove(run.get());
    }

   private:
    Engine* engine_;
    Ref<Run> run_;
    Done done_;
  };

  Engine();
  void add(Run* run);
  void remove(Run* run) noexcept;
  std::size_t live() const;
  void end();

  static Engine* engine_;  // used with the GIL held
  static int forks_of_engine_;
  static bool shut_down_;

  mutable std::mutex mutex_;
  std::condition_variable none_;
  std::set<Run*> live_;
  std::unique_ptr<ThreadExecutor> executor_;
};

}  // namespace millrace::python
