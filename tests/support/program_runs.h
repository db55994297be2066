// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/tensor/work_failure.h>
#include <support/drive.h>
#include <support/random.h>

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

/// Runs the program on the CPU and, under `count` seeds of all policies, on `sim:0`: the same bits each time, nothing left behind. Gives
/// the result of the CPU. Some more runs meet a fault: see `through_faults`. `traces`, if given, gets the number of distinct schedules.
inline RunResult everywhere(const Program& program, const Feeds& feeds = {}, std::uint64_t count = 200, std::size_t* traces = nullptr) {
  RunResult result = on_cpu(program, feeds);
  const std::string wanted = bits(result);
  std::set<std::uint64_t> distinct;
  bool faults = false;
  for (const std::uint64_t seed : seeds(count)) {
    INFO("seed ", seed);
    Schedule schedule(seed, policy_of(seed));
    {
      const RunResult found = on_sim(schedule, program, feeds);
      CHECK(bits(found) == wanted);
      CHECK(found.turns == result.turns);
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
