// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/cuda_device.h>
#include <millrace/tensor/visit.h>
#include <millrace/tensor/work_failure.h>
#include <support/drive.h>
#include <support/random.h>
#include <support/test_place.h>

namespace millrace::testing {

/// Outputs as bytes: names, dtypes, shapes, LoD, elements.
inline std::string bits(const RunResult& result) {
  std::string all;
  for (const auto& [name, value] : result.outputs()) {
    const LoDTensor& rows = value.tensor();
    all += name + " " + std::string(name_of(rows.dtype())) + rows.dims().to_string() + rows.lod().to_string() + " ";
    const Tensor host = rows.tensor().copy_to(CpuPlace{});
    all.append(static_cast<const char*>(host.raw()), host.bytes());
  }
  return all;
}

/// The program on a CPU device, tasks first in, first out.
inline RunResult on_cpu(const Program& program, const Feeds& feeds = {}, RunOptions options = {}) {
  return run_fifo(run(program, feeds, options));
}

inline SeededExecutor::Policy policy_of(std::uint64_t seed) {
  constexpr SeededExecutor::Policy all[] = {SeededExecutor::Policy::random, SeededExecutor::Policy::pct, SeededExecutor::Policy::fifo};
  return all[seed % 3];
}

/// A device that others keep.
inline std::shared_ptr<Device> borrow(Device& device) { return std::shared_ptr<Device>(std::shared_ptr<void>(), &device); }

/// The program on `sim:0` with two streams, in an order that `schedule` draws.
inline RunResult on_sim(Schedule& schedule, const Program& program, const Feeds& feeds = {}, RunOptions options = {}) {
  return schedule.run(run(Executable(program, borrow(schedule.device)), feeds, options), program.title());
}

/// Runs the program on devices where something goes wrong, at places that the seed draws: a piece of work, an allocation, too little memory.
/// It ends with the bits of `wanted` or with one error that names the device, and leaves nothing behind. True: with an error.
inline bool ends_well(const Program& program, const Feeds& feeds, const std::string& wanted, std::uint64_t seed,
                      const SimDevice::Options& options) {
  Schedule schedule(seed, policy_of(seed), options);
  bool failed = false;
  try {
    const RunResult found = on_sim(schedule, program, feeds);
    CHECK(bits(found) == wanted);
  } catch (const Error& error) {
    failed = true;
    INFO("error: ", std::string(error.what()));
    CHECK((dynamic_cast<const DeviceError*>(&error) != nullptr || dynamic_cast<const OutOfMemoryError*>(&error) != nullptr));
    CHECK(std::string(error.what()).find("on sim:0") != std::string::npos);
  }
  // A stream that failed once may go on failing (a stream whose work did), but never gives anything else than the bits, and memory that was refused
  // once is there the next time.
  if (failed && options.fail_work == 0) {
    try {
      const RunResult next = on_sim(schedule, program, feeds);
      CHECK(bits(next) == wanted);
    } catch (const OutOfMemoryError&) {
      CHECK(options.fail_allocation == 0);
    }
  } else if (failed) {
    try {
      const RunResult next = on_sim(schedule, program, feeds);
      CHECK(bits(next) == wanted);
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find("on sim:0") != std::string::npos);
    }
  }
  schedule.device.drain(seed);
  CHECK(schedule.device.idle());
  schedule.device.release_cached();
  CHECK(schedule.device.sim_memory().live_bytes() == 0);
  CHECK(live_frames() == 0);
  return failed;
}

/// `ends_well` for `count` seeds, one fault each. `clean`: a device on which the program ran without.
inline std::size_t through_faults(const Program& program, const Feeds& feeds, const std::string& wanted, std::uint64_t count,
                                  const SimDevice& clean) {
  std::size_t failed = 0;
  for (const std::uint64_t seed : seeds(count)) {
    INFO("faults of seed ", seed);
    Random random(seed);
    SimDevice::Options options;
    options.late = random.coin();
    options.caching = random.coin();
    const auto upto = [&](std::size_t most) {
      return static_cast<std::size_t>(random.between(1, std::max<std::int64_t>(1, static_cast<std::int64_t>(most))));
    };
    switch (random.between(0, 2)) {
      case 0: options.fail_work = upto(clean.works()); break;
      case 1: options.fail_allocation = upto(clean.sim_memory().allocations()); break;
      default: options.capacity = upto(2 * clean.sim_memory().peak_bytes());
    }
    failed += ends_well(program, feeds, wanted, seed, options);
  }
  return failed;
}

/// The largest difference of two tensors of floats relative to what stands there; infinite where they are of different kinds, or differ and
/// are no floats.
inline double distance(const Tensor& found, const Tensor& expected) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  if (found.dtype() != expected.dtype() || found.dims() != expected.dims()) return infinite;
  double worst = 0;
  for_each_offset(expected.dims(), expected.dims().row_major(), [&](std::int64_t i) {
    visit_dtype(expected.dtype(), [&]<class T>(std::type_identity<T>) {
      const auto a = convert_element<double>(found.data<T>()[i]);
      const auto b = convert_element<double>(expected.data<T>()[i]);
      if (a == b || (a != a && b != b)) return;
      const double error = is_floating(dtype_of<T>) ? std::abs(a - b) / std::max(1.0, std::abs(b)) : infinite;
      worst = error == error ? std::max(worst, error) : infinite;
    });
  });
  return worst;
}

/// The program on the device that a whole program of tests is for gives what it gave on the CPU, but for the last bits of what CUDA's own
/// functions compute.
inline void check_on_device(const Program& program, const Feeds& feeds, const RunResult& wanted) {
  ThreadExecutor executor(2);
  const RunResult found = sync_wait(executor, run(Executable(program, make_device(Place::parse(test_place()))), feeds, RunOptions()));
  CHECK(found.iterations == wanted.iterations);
  for (const auto& [name, value] : wanted.outputs()) {
    INFO("output ", name, " on ", test_place());
    const LoDTensor& there = found.value(name).tensor();
    CHECK(there.lod() == value.tensor().lod());
    CHECK(distance(there.tensor().copy_to(CpuPlace{}), value.tensor().tensor().copy_to(CpuPlace{})) <= 1e-5);
  }
}

/// Runs the program on the CPU and, under `count` seeds of all policies, on `sim:0`: the same bits each time, nothing left behind. Gives
/// the result of the CPU. Some more runs meet a fault: see `through_faults`. `traces`, if given, gets the number of distinct schedules.
/// In a program of tests for one place it runs on the CPU and there.
inline RunResult everywhere(const Program& program, const Feeds& feeds = {}, std::uint64_t count = 200, std::size_t* traces = nullptr) {
  RunResult result = on_cpu(program, feeds);
  if (*test_place() != 0) {
    check_on_device(program, feeds, result);
    if (traces != nullptr) *traces = count;
    return result;
  }
  const std::string wanted = bits(result);
  std::set<std::uint64_t> distinct;
  bool faults = false;
  for (const std::uint64_t seed : seeds(count)) {
    INFO("seed ", seed);
    Schedule schedule(seed, policy_of(seed));
    {
      const RunResult found = on_sim(schedule, program, feeds);
      CHECK(bits(found) == wanted);
      CHECK(found.iterations == result.iterations);
      CHECK(found.live_step_scopes() == 0);
    }
    CHECK(schedule.device.idle());
    CHECK(schedule.device.sim_memory().live_bytes() == 0);
    distinct.insert(schedule.executor.trace_hash());
    if (!std::exchange(faults, true)) through_faults(program, feeds, wanted, (count + 7) / 8, schedule.device);
  }
  CHECK(live_frames() == 0);
  if (traces != nullptr) *traces = distinct.size();
  return result;
}

}  // namespace millrace::testing
