// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include <support/sim_device.h>

namespace millrace::testing {

/// A simulated device that a thread of its own drives, in an order that the seed chooses.
class Driven {
 public:
  Driven(std::uint64_t seed, SimDevice::Options options) : device_(options), thread_([this, seed] { drive(seed); }) {}
  ~Driven() {
    stop_ = true;
    thread_.join();
  }
  Driven(const Driven&) = delete;
  Driven& operator=(const Driven&) = delete;

  /// Lives as long as this.
  std::shared_ptr<Device> device() { return {std::shared_ptr<void>(), &device_}; }
  SimDevice& sim() noexcept { return device_; }
  /// Waits for all that was enqueued.
  void settle() {
    for (std::size_t i = 0; i < device_.stream_count(); ++i) device_.stream(i).position().wait();
  }

 private:
  void drive(std::uint64_t seed) {
    while (!stop_)
      if (device_.drain(seed++) == 0) std::this_thread::yield();
    device_.drain(seed);
  }
  SimDevice device_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace millrace::testing
