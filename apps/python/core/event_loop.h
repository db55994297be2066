// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <millrace/runtime/task/executor.h>
#include <millrace/runtime/task/run.h>
#include <millrace/runtime/task/start_run.h>

#include "bind.h"

namespace millrace::python {

class Operation;

/// Something that tasks of an event loop wait for.
class LoopNews {
 public:
  virtual ~LoopNews() = default;
  /// Wakes those tasks, which may run inside. With the GIL held, by the event loop itself. Throws an error of Python that ends the event loop's run.
  virtual void deliver() = 0;
};

/// An event loop of asyncio as an executor: tasks run on the loop's thread, with the GIL held, inside `run_posted`. Whatever other threads post until
/// then comes with one wake-up: the descriptor `fileno` becomes readable, and the loop, which watches it, calls `on_readable`. So many results cost the
/// loop one pass, and no thread of the library ever waits for the GIL.
///
/// Thread safety: `post` and the timers from any thread, all else on the loop's thread.
class LoopExecutor final : public Executor {
 public:
  /// IoError without a descriptor.
  LoopExecutor();
  ~LoopExecutor() override;

  int fileno() const noexcept { return event_; }
  /// `run_posted`, and delivers the news that were posted. For a callback of the event loop, where none of its tasks runs.
  void on_readable();
  /// Runs the posted work, and work that is posted meanwhile, within reason.
  void run_posted();
  /// Cancels the operations that have not ended, and runs what they need for their end. The loop does not call `run_posted` any more.
  void close();

  void post(Runnable& runnable) noexcept override;
  /// Any thread. Nothing behind `close`.
  void post(std::shared_ptr<LoopNews> news) noexcept;
  bool running_in_this_thread() const noexcept override { return RuntimeThread::current() == this; }
  bool serial() const noexcept override { return true; }
  TimePoint now() const noexcept override;
  void add_timer(Timer& timer, TimePoint when) noexcept override;
  bool cancel_timer(Timer& timer) noexcept override;

  /// Operations of all loops that have not ended; not those that the engine counts as runs.
  static std::size_t live_operations() noexcept;

 private:
  friend class Operation;
  using News = std::vector<std::shared_ptr<LoopNews>>;
  bool run_queue();
  void signal() noexcept;

  Executor& clock_;  ///< of the engine, which fires timers
  int event_;
  std::mutex mutex_;
  std::condition_variable posted_;
  RunnableQueue queue_;
  News news_;
  bool driving_ = false;  // with the mutex held
  bool signalled_ = false;
  bool closed_ = false;
  std::set<Operation*> live_;
};

/// Work that a task of asyncio waits for. All members with the GIL held, on the loop's thread.
class Operation : public std::enable_shared_from_this<Operation> {
 public:
  virtual ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  bool ended() const noexcept { return ended_; }
  /// The work comes to its end soon; whoever waits is woken then.
  void cancel() const {
    if (ended_) return;
    run_->cancel();
    if (cancel_) cancel_();
  }
  /// Calls `wake` once the work has ended; at once when it has.
  void wake_by(nb::object wake);
  /// Moves the result out, or throws the error. NotReadyError before the end.
  nb::object result();

 protected:
  Operation(std::shared_ptr<LoopExecutor> loop, std::string name);
  const Ref<Run>& run() const noexcept { return run_; }
  const std::shared_ptr<LoopExecutor>& loop() const noexcept { return loop_; }
  /// `counted`: among those of `live_operations`.
  void begin(bool counted);
  void end() noexcept;
  virtual nb::object take() = 0;

  std::function<void()> cancel_;

 private:
  const std::shared_ptr<LoopExecutor> loop_;
  const Ref<Run> run_;
  nb::object wake_;
  bool ended_ = false;
  bool counted_ = false;
};

/// `convert` makes the result's Python object.
template <class T, class Convert>
class OperationOf final : public Operation, private Runnable {
 public:
  /// Starts `work` on the loop, and runs it as far as it goes by itself: it may have ended when this returns.
  static std::shared_ptr<Operation> start(std::shared_ptr<LoopExecutor> loop, task<T> work, std::string name, Convert convert) {
    auto made = make(std::move(loop), std::move(name), std::move(convert), true);
    RootTask<T, Here>::start(*made->loop(), made->run(), std::move(work), Here{made});
    made->loop()->run_posted();
    return made;
  }
  /// Work that is not the loop's: `begin(run, done)` starts it, and `done(outcome)` is called on any thread. `cancel` is called beside the run's own.
  template <class Begin>
  static std::shared_ptr<Operation> start_elsewhere(std::shared_ptr<LoopExecutor> loop, std::string name, Convert convert, Begin begin,
                                                    std::function<void()> cancel) {
    auto made = make(std::move(loop), std::move(name), std::move(convert), false);
    made->cancel_ = std::move(cancel);
    const std::shared_ptr<OperationOf> kept = made;
    try {
      begin(kept->run(), Elsewhere{std::move(made)});
    } catch (...) {
      kept->end();
      throw;
    }
    return kept;
  }

 private:
  struct Here {
    std::shared_ptr<OperationOf> self;
    void operator()(Outcome<T> outcome) noexcept {
      self->outcome_ = std::move(outcome);
      self->end();
    }
  };
  /// The operation itself travels to the loop, so that its last owner is never a thread without the GIL.
  struct Elsewhere {
    std::shared_ptr<OperationOf> self;
    void operator()(Outcome<T> outcome) noexcept {
      OperationOf& to = *self;
      const std::shared_ptr<LoopExecutor> loop = to.loop();  // the operation may be gone before `post` returns
      to.outcome_ = std::move(outcome);
      to.arriving_ = std::move(self);
      loop->post(to);
    }
  };

  OperationOf(std::shared_ptr<LoopExecutor> loop, std::string name, Convert convert)
      : Operation(std::move(loop), std::move(name)), convert_(std::move(convert)) {}
  static std::shared_ptr<OperationOf> make(std::shared_ptr<LoopExecutor> loop, std::string name, Convert convert, bool counted) {
    std::shared_ptr<OperationOf> made(new OperationOf(std::move(loop), std::move(name), std::move(convert)));
    made->begin(counted);
    return made;
  }

  void execute() noexcept override {
    const std::shared_ptr<OperationOf> self = std::move(arriving_);
    end();
  }
  nb::object take() override {
    if constexpr (std::is_void_v<T>) {
      outcome_.take();
      return convert_();
    } else {
      return convert_(outcome_.take());
    }
  }

  Convert convert_;
  Outcome<T> outcome_;
  std::shared_ptr<OperationOf> arriving_;
};

/// An operation that millrace._async awaits.
struct OperationObject {
  std::shared_ptr<Operation> operation;
};
/// The state that millrace._async keeps for each event loop.
struct LoopObject {
  std::shared_ptr<LoopExecutor> executor;
};

template <class T, class Convert>
OperationObject start_on(const LoopObject& loop, task<T> work, std::string name, Convert convert) {
  return {OperationOf<T, Convert>::start(loop.executor, std::move(work), std::move(name), std::move(convert))};
}

template <class T, class Convert, class Begin, class Cancel>
OperationObject start_elsewhere(const LoopObject& loop, std::string name, Convert convert, Begin begin, Cancel cancel) {
  return {
      OperationOf<T, Convert>::start_elsewhere(loop.executor, std::move(name), std::move(convert), std::move(begin), std::move(cancel))};
}

}  // namespace millrace::python
