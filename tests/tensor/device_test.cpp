// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/device.h>

#include <doctest/doctest.h>

#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/error.h>

using namespace millrace;

TEST_CASE("the host's device has a ring of streams that share memory") {
  const auto memory = std::make_shared<CachingResource>(host_memory());
  CpuDevice cpu(2, 3, memory);
  CHECK(cpu.place().is_cpu());
  CHECK(cpu.stream_count() == 3);
  CHECK(cpu.memory() == memory);
  CHECK(cpu.stream(1).memory() == memory);
  CHECK(cpu.stream(4) == cpu.stream(1));
  CHECK_FALSE(cpu.stream(0) == cpu.stream(1));
}

TEST_CASE("the team has as many threads as asked") {
  CpuDevice cpu(2);
  int size = 0;
  cpu.stream(0).enqueue([&](ThreadTeam& team) { size = team.size(); });
  CHECK(size == 2);
}

TEST_CASE("a device needs a thread and a stream") {
  CHECK_THROWS_WITH_AS(CpuDevice(1, 0), "cpu device: expected from 1 to 1024 streams, found 0", ArgumentError);
  CHECK_THROWS_AS(CpuDevice(0, 1), ArgumentError);
}
