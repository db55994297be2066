// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/executor/run_program.h>
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

/// Runs the program on the CPU and, under `count` seeds of all policies, on `sim:0`: the same bits each time, nothing left behind. Gives
/// the result of the CPU; `traces`, if given, gets the number of distinct schedules.
inline RunResult everywhere(const Program& program, const Feeds& feeds = {}, std::uint64_t count = 200, std::size_t* traces = nullptr) {
  RunResult result = on_cpu(program, feeds);
  const std::string wanted = bits(result);
  std::set<std::uint64_t> distinct;
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
  }
  CHECK(live_frames() == 0);
  if (traces != nullptr) *traces = distinct.size();
  return result;
}

}  // namespace millrace::testing
