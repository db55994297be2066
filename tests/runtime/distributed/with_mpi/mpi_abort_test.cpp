// SPDX-License-Identifier: Apache-2.0
// An abort is the end of MPI in a process: this case is alone in its entry.
#include <chrono>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include <millrace/runtime/distributed/mpi.h>
#include <millrace/tensor/cpu_stream.h>

using namespace millrace;
using namespace std::chrono_literals;

TEST_CASE("an abort by one rank ends the operations of all ranks with its reason") {
  CpuStream stream(std::make_shared<ThreadTeam>(1));
  const auto world = make_mpi_communicator({.name = "short", .deadline = 20s});
  Tensor one = Tensor::scalar<float>(1);
  world->all_reduce(one, one, Reduce::sum, stream).wait();
  const int last = world->world_size() - 1;
  const std::string wanted = "by rank " + std::to_string(last) + ": the loss is not a number";
  std::string found;
  if (world->rank() == last) world->abort("the loss is not a number");
  try {
    Tensor more = Tensor::scalar<float>(1);
    world->all_reduce(more, more, Reduce::sum, stream).wait();
  } catch (const AbortedError& error) {
    found = error.what();
  }
  CHECK(found.find(wanted) != std::string::npos);
  CHECK(world->aborted());
}
