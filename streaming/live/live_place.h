// SPDX-License-Identifier: Apache-2.0
#pragma once

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
#include <millrace/streaming/transport/asio.h>
#include <millrace/tensor/device.h>

namespace millrace {

class Tracer;

/// One place of a server: the batcher of the sessions whose state is there, that state, and a thread that computes the ticks. Used on the
/// io_context's one thread; held by shared_ptr, since a tick that is out keeps it.
class LivePlace : public std::enable_shared_from_this<LivePlace> {
 public:
  struct Options {
    std::shared_ptr<Device> device;
    Backend backend = Backend::automatic;
    std::size_t max_rows = 4096;
    Tracer* tracer = nullptr;
    std::shared_ptr<ServerCounts> counts{};  ///< of the server; none: nothing is counted
  };

  LivePlace(boost::asio::io_context& context, const std::shared_ptr<const Recurrence>& recurrence, Options options);

  Place place() const { return options_.device->place(); }
  /// See StateSlab; while no tick runs.
  std::string backend() const { return slab_.backend(); }
  Batcher& batcher() noexcept { return batcher_; }
  const Batcher& batcher() const noexcept { return batcher_; }
  /// Sends a tick off when one is ready. Called after everything that may have made a sequence ready.
  void pump();
  /// As `pump`, behind what is there to be handled already: all messages of one round of the sockets share a tick.
  void pump_soon();
  /// Nothing is out, and nothing is ready.
  bool idle() const noexcept { return !pumping_ && !batcher_.tick_out() && !batcher_.ready(); }

  /// How long ticks took lately, for each row of theirs. 0 before the first.
  double seconds_a_row() const noexcept { return seconds_a_row_; }
  /// Of the states, as of the last tick.
  std::size_t state_bytes() const noexcept { return state_bytes_; }

  /// PlaceLostError once the place is gone: all its sessions were told, and none may begin here. Else null.
  const std::exception_ptr& lost() const noexcept { return lost_; }
  /// How many sessions were told so.
  std::size_t told() const noexcept { return told_; }
  /// Asks the device, which may have gone with another one; when no tick is out.
  void check();

  /// Called when a tick came back and no other followed, and when the place was lost.
  std::function<void()> on_idle;
  std::function<void()> on_lost;

 private:
  /// One tick on the worker. Lives until its result is back on the context.
  class Job;
  void tick_done(TickResult result, double seconds, std::size_t state_bytes);
  void count_tick(std::size_t rows, double seconds);
  void count_wait(std::chrono::steady_clock::time_point since);
  void lose(std::exception_ptr error);

  boost::asio::io_context& context_;
  Options options_;
  Batcher batcher_;
  StateSlab slab_;
  std::exception_ptr lost_;
  std::size_t told_ = 0;
  double seconds_a_row_ = 0;
  std::size_t state_bytes_ = 0;
  std::chrono::steady_clock::time_point waiting_since_{};  // of the row that waits longest for a tick; the epoch while none does
  bool pumping_ = false;
  bool pump_posted_ = false;
  ThreadExecutor worker_{1};
};

}  // namespace millrace
