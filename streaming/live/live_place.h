// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include <millrace/runtime/loops/backend.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/streaming/live/batcher.h>
#include <millrace/streaming/live/server_counts.h>
#include <millrace/streaming/live/state_slab.h>
#include <millrace/tensor/device.h>

namespace millrace {

class Tracer;

/// One place of live sequences: their batcher, their states, and a thread that computes the ticks, one at a time (other places may share it). A tick and its results keep their memory, so
/// a step allocates nothing once as many rows were in a tick. A derived class says where the batcher lives: on a thread, or under a lock. Everything here is
/// used there, but for `tick_done`. It is destroyed when no tick is out.
class LivePlace {
 public:
  struct Options {
    std::shared_ptr<Device> device;
    Backend backend = Backend::automatic;
    std::size_t max_rows = 4096;
    /// The time that a tick may spend on sequences that are ahead of their pace (see Batcher) while others live; 0: as much as there is.
    std::chrono::microseconds ahead{0};
    Tracer* tracer = nullptr;
    std::shared_ptr<ModelCounts> counts{};  ///< none: nothing is counted
    std::shared_ptr<ThreadExecutor>
        worker{};  ///< for the ticks of several places of one device, which take turns; none: a thread of its own
    /// On the thread of ticks, behind each one that succeeded, before its results are given. May return what later ticks go by (see StateSlab::renew_weights). What it
    /// throws fails the tick.
    std::function<std::shared_ptr<const Recurrence>(const Tick&)> behind_tick{};
  };

  LivePlace(const std::shared_ptr<const Recurrence>& recurrence, Options options);
  virtual ~LivePlace() = default;
  LivePlace(const LivePlace&) = delete;
  LivePlace& operator=(const LivePlace&) = delete;

  Place place() const { return options_.device->place(); }
  /// See StateSlab; while no tick runs.
  std::string backend() const { return slab_.backend(); }
  Batcher& batcher() noexcept { return batcher_; }
  const Batcher& batcher() const noexcept { return batcher_; }
  /// Sends a tick off when one is ready. Called after everything that may have made a sequence ready.
  void pump();
  /// Nothing is out, and nothing is ready.
  bool idle() const noexcept { return !finishing_ && !batcher_.tick_out() && !batcher_.ready(); }

  /// The time that ticks took lately, for each row of theirs. 0 before the first.
  double seconds_a_row() const noexcept { return seconds_a_row_; }
  /// Bytes of the states, as of the last tick.
  std::size_t state_bytes() const noexcept { return state_bytes_; }

  /// PlaceLostError once the place is gone: all its sequences failed with it. Else null.
  const std::exception_ptr& lost() const noexcept { return lost_; }
  /// The number of sequences that were told of the loss, and failed.
  std::size_t told() const noexcept { return told_; }
  /// Asks the device, which may have gone with another one; when no tick is out.
  void check();

 protected:
  /// A tick was taken, and goes to the thread of ticks behind this call.
  virtual void tick_taken() noexcept {}
  /// On the thread of ticks: the tick is done, and `finish` is to be called where the batcher lives.
  virtual void tick_done() noexcept = 0;
  /// No other tick followed the last; the place was lost.
  virtual void became_idle() {}
  /// Rows wait, and no memory is left for their tick: called while that std::bad_alloc or OutOfMemoryError is handled, which goes on to the caller of `pump` by default.
  virtual void starved() { throw; }
  virtual void became_lost() {}

  /// Gives the results of the tick to the sinks, and sends the next one off.
  void finish();
  /// Rows wait from now, if some do.
  void count_waiting();
  /// Runs `runnable` on the thread of ticks. No tick is out, or it runs behind that.
  void post_to_ticks(Runnable& runnable) noexcept { worker_->post(runnable); }
  /// No tick is sent off any more.
  void stop() noexcept { stopped_ = true; }
  /// The calling thread is that of ticks.
  bool in_ticks() const noexcept { return worker_ != nullptr && worker_->running_in_this_thread(); }
  /// Ends the thread of ticks. No tick is out.
  void join() noexcept { worker_.reset(); }

 private:
  class Job final : public Runnable {
   public:
    explicit Job(LivePlace& place) noexcept : place_(place) {}
    void execute() noexcept override { place_.run_tick(); }

   private:
    LivePlace& place_;
  };

  void step_tick();
  void run_tick() noexcept;
  void count_tick();
  void count_cost(double seconds);
  void lose(std::exception_ptr error);

  Options options_;
  Batcher batcher_;
  StateSlab slab_;
  Job job_{*this};
  Tick tick_;  // that is out, and its results
  TickResult result_;
  double seconds_ = 0;
  std::size_t state_bytes_out_ = 0;
  std::exception_ptr lost_;
  std::size_t told_ = 0;
  double seconds_a_row_ = 0;
  double cost_a_row_ = 0;  // seconds, with what its results take
  std::size_t state_bytes_ = 0;
  std::chrono::steady_clock::time_point waiting_since_{};  // of the row that waits longest for a tick; the epoch while none does
  bool finishing_ = false;
  std::atomic<bool> stopped_ = false;
  std::shared_ptr<ThreadExecutor> worker_;
};

}  // namespace millrace
