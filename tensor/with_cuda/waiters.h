// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <millrace/tensor/awaited_soon.h>

namespace millrace::cuda {

class StreamState;

/// Notices what a device's streams complete. One thread looks at all of them: it spins for at most 50 µs without progress, then naps between two
/// looks, each time for half a per cent of the time since something moved, from 10 µs to 1 ms. So a wait grows by half a per cent or by 10 µs, and by the time
/// that the system takes to wake a thread. CUDA, which knows of failures, is asked between two naps, and every millisecond while it
/// spins. The thread sleeps while nothing is in flight.
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
  /// Ends the thread.
  void stop() noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  bool in_flight() const;
  bool look(int rounds);
  bool ask();

  const int device_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<StreamState>> streams_;
  std::thread thread_;
  std::optional<AwaitedSoon> soon_;  // while it spins, or is about to
  bool sleeping_ = false;
  bool notified_ = false;
  bool stopped_ = false;
};

}  // namespace millrace::cuda
