// SPDX-License-Identifier: Apache-2.0
// millrace-soak: runs seeded schedules of task programs over a simulated device whose streams complete in any order, and compares each with
// the same program on one stream, first in, first out. MILLRACE_SCHEDULES says how many (5000 unless set); MILLRACE_SEED runs one alone;
// MILLRACE_DROP_WAIT=n drops the n-th wait of each schedule between streams, which must make it fail.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <unordered_set>
#include <vector>

#include <millrace/runtime/task/errors.h>
#include <soak/scenario.h>
#include <support/drive.h>
#include <support/random.h>

namespace millrace::soak {
namespace {

using testing::Random;
using testing::Schedule;
using testing::SimDevice;

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::vector<Values> expected() {
  std::vector<Values> all;
  for (const Scenario& scenario : scenarios()) {
    Schedule schedule(0, SeededExecutor::Policy::fifo, {.streams = 1});
    all.push_back(scenario.deadlocks ? Values() : schedule.run(scenario.make(&schedule.device)));
  }
  return all;
}

/// The error of a run, or nothing. One schedule in eight is cancelled after a number of decisions that the seed draws.
std::string run_one(const Scenario& scenario, const Values& wanted, Schedule& schedule, std::uint64_t seed) {
  Random random(seed);
  const bool cancel = random.between(0, 7) == 0;
  bool cancelled = false;
  try {
    Running<Values> running = start_run(schedule.executor, scenario.make(&schedule.device), scenario.name);
    if (cancel) {
      for (std::int64_t left = random.between(0, 150); left > 0 && schedule.executor.step();) --left;
      cancelled = !running.ended();
      running.cancel();
    }
    schedule.executor.run();
    const Values found = running.get();
    if (scenario.deadlocks) return "ended without a DeadlockError";
    if (!same_bits(found, wanted)) return "other bits than on one stream";
  } catch (const DeadlockError& error) {
    if (!scenario.deadlocks) return error.what();
  } catch (const CancelledError& error) {
    if (!cancelled) return error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

std::string check_after(Schedule& schedule) {
  schedule.executor.run();
  if (!schedule.device.idle()) return "work was left on a stream";
  if (const std::size_t live = schedule.device.sim_memory().live_bytes(); live != 0)
    return std::to_string(live) + " bytes of the device are still held";
  if (const std::size_t frames = live_frames(); frames != 0) return std::to_string(frames) + " coroutine frames are alive";
  return {};
}

int run_all(std::uint64_t first, std::uint64_t count, std::size_t drop_wait) {
  const std::vector<Values> wanted = expected();
  std::unordered_set<std::uint64_t> traces;
  std::uint64_t failures = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const std::size_t which = static_cast<std::size_t>(seed % scenarios().size());
    const Scenario& scenario = scenarios()[which];
    const bool pct = (seed / scenarios().size()) % 2 == 1;
    Schedule schedule(seed, pct ? SeededExecutor::Policy::pct : SeededExecutor::Policy::random, {.streams = 2, .drop_wait = drop_wait});
    schedule.executor.set_pct(3, 150);
    std::string wrong = run_one(scenario, wanted[which], schedule, seed);
    if (wrong.empty()) wrong = check_after(schedule);
    traces.insert(schedule.executor.trace_hash());
    if (wrong.empty()) continue;
    std::printf("soak: FAILED seed %llu, scenario '%s' (%s): %s\n", static_cast<unsigned long long>(seed), scenario.name,
                pct ? "pct" : "random", wrong.c_str());
    if (++failures == 10) break;
  }
  std::printf("soak: schedules=%llu distinct_traces=%zu failures=%llu\n", static_cast<unsigned long long>(count), traces.size(),
              static_cast<unsigned long long>(failures));
  const bool varied = count < 1000 || traces.size() * 2 >= count;
  if (!varied) std::printf("soak: FAILED: fewer than half of the schedules were different\n");
  return failures == 0 && varied ? 0 : 1;
}

}  // namespace
}  // namespace millrace::soak

int main() {
  const auto number = [](const char* name, std::uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
  };
  const bool one = std::getenv("MILLRACE_SEED") != nullptr;
  return millrace::soak::run_all(number("MILLRACE_SEED", 1), one ? 1 : number("MILLRACE_SCHEDULES", 5000), number("MILLRACE_DROP_WAIT", 0));
}
