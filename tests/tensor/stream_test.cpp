// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/stream.h>

#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/tensor/device.h>

#include "support/sim_device.h"

using namespace millrace;

TEST_CASE("a reference names its stream's place and memory and compares by stream") {
  CpuDevice cpu(1, 2);
  const StreamRef first = cpu.stream(0);
  CHECK(first.place().is_cpu());
  CHECK(first.memory() == cpu.memory());
  CHECK(first == cpu.stream(0));
  CHECK_FALSE(first == cpu.stream(1));
}

TEST_CASE("work runs in place where the stream allows it, without a copy of the function") {
  CpuDevice cpu;
  struct Uncopyable {
    int* runs;
    explicit Uncopyable(int* counter) : runs(counter) {}
    Uncopyable(Uncopyable&&) = default;
    void operator()(ThreadTeam& team) { *runs += team.size(); }
  };
  int runs = 0;
  cpu.stream(0).enqueue(Uncopyable(&runs));
  CHECK(runs == 1);
}

TEST_CASE("work on a device that runs later is owned until then") {
  testing::SimDevice sim;
  auto counter = std::make_shared<int>(0);
  sim.stream(0).enqueue([counter](ThreadTeam&) { ++*counter; });
  CHECK(*counter == 0);
  CHECK(counter.use_count() == 2);
  sim.drain(1);
  CHECK(*counter == 1);
  CHECK(counter.use_count() == 1);
}

TEST_CASE("one stream waits for a point of another") {
  testing::SimDevice sim;
  std::vector<int> log;
  sim.stream(0).enqueue([&](ThreadTeam&) { log.push_back(1); });
  sim.stream(1).wait(sim.stream(0).position());
  sim.stream(1).enqueue([&](ThreadTeam&) { log.push_back(2); });
  sim.drain(3);
  CHECK(log == std::vector<int>{1, 2});
}
