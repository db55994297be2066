// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::cuda {

class StreamState;

/// Notices what a device's streams complete. One thread spins over the words of all streams, for at most 50 µs without progress; then it
/// blocks on the event of one of them, and if others are still in flight, another thread takes its place, so that no stream's completion
/// hides behind another's. A watermark has no event to block on: while a waiter waits for one that does not move, a thread polls it with growing pauses.
/// There are never more threads than streams and one, mostly one, and all sleep while nothing is in flight.
class Waiters {
 public:
  explicit Waiters(int device) : device_(device) {}
  ~Waiters() { stop(); }
  Waiters(const Waiters&) = delete;
  Waiters& operator=(const Waiters&) = delete;

  /// Before the first `notify`.
  void watch(std::shared_ptr<StreamState> stream);
  /// A stream has a new mark.
  void notify();
  /// Ends the threads; those that block wait for their events first.
  void stop() noexcept;

 private:
  struct Watched {
    std::shared_ptr<StreamState> stream;
    bool taken = false;  // a thread blocks on its event
  };

  void run();
  bool spin(std::unique_lock<std::mutex>& lock);
  Watched* waiting();
  bool watching();
  void doze(std::unique_lock<std::mutex>& lock);

  int device_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Watched> streams_;
  std::vector<std::thread> threads_;
  std::size_t asleep_ = 0;
  bool spinning_ = false;
  bool stopped_ = false;
  std::chrono::microseconds doze_{50};
};

}  // namespace millrace::cuda
