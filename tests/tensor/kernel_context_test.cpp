// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/kernel_context.h>

#include <doctest/doctest.h>
#include <millrace/tensor/device.h>
#include <millrace/tensor/tensor.h>
#include <support/sim_device.h>

namespace millrace::testing {

TEST_CASE("work on a stream of the host finds the place, the threads and the memory of the stream, and no queue of a device") {
  CpuDevice cpu(2);
  bool ran = false;
  cpu.stream(0).enqueue([&](KernelContext& context) {
    ran = true;
    CHECK(context.place() == cpu.place());
    CHECK(context.device_queue() == nullptr);
    CHECK(context.team().size() == 2);
    CHECK(context.workspace() == cpu.memory());
  });
  CHECK(ran);
}

TEST_CASE("work that runs later finds the context of the stream that ran it") {
  SimDevice sim;
  Place found;
  sim.stream(0).enqueue([&](KernelContext& context) {
    found = context.place();
    CHECK(Tensor(DType::f32, DDim{3}, context.workspace()).place() == sim.place());
  });
  sim.drain(1);
  CHECK(found == sim.place());
}

TEST_CASE("work that computes on the host takes the team alone") {
  CpuDevice cpu(2);
  int threads = 0;
  cpu.stream(0).enqueue([&](ThreadTeam& team) { threads = team.size(); });
  CHECK(threads == 2);
}

TEST_CASE("a context of a device names the queue on which kernels are started") {
  ThreadTeam team(1);
  const std::shared_ptr<MemoryResource> memory = host_memory();
  int queue = 0;
  const KernelContext context(CudaPlace{1}, team, memory, &queue);
  CHECK(context.device_queue() == &queue);
  CHECK(context.place() == Place(CudaPlace{1}));
}

}  // namespace millrace::testing
