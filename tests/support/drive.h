// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/start_run.h>
#include <support/sim_device.h>

namespace millrace::testing {

/// A schedule: tasks and the streams of one simulated device, all moved by one seed on one thread. One seed in four has a late device.
class Schedule {
 public:
  explicit Schedule(std::uint64_t seed, SeededExecutor::Policy policy = SeededExecutor::Policy::random, SimDevice::Options options = {})
      : device(sometimes_late(options, seed)), executor(seed, policy) {
    executor.add_source(device);
  }
  ~Schedule() { executor.remove_source(device); }
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  /// Runs `work` to its end: its result, or its error; then whatever the streams still have.
  template <class T>
  T run(task<T> work, std::string name = "test") {
    Running<T> running = start_run(executor, std::move(work), std::move(name));
    executor.run();
    return running.get();
  }

  SimDevice device;
  SeededExecutor executor;

 private:
  static SimDevice::Options sometimes_late(SimDevice::Options options, std::uint64_t seed) {
    options.late = options.late || seed % 4 == 3;
    return options;
  }
};

/// Runs `work` on tasks alone: for what needs no simulated stream. First in, first out.
template <class T>
T run_fifo(task<T> work, std::string name = "test") {
  SeededExecutor executor(0, SeededExecutor::Policy::fifo);
  Running<T> running = start_run(executor, std::move(work), std::move(name));
  executor.run();
  return running.get();
}

}  // namespace millrace::testing
