// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/rank_world.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/distributed/tcp.h>
#include <millrace/tensor/cpu_stream.h>

#include "runtime/distributed/rank_threads.h"

using namespace millrace;
using namespace millrace::testing;

TEST_CASE("ranks that an environment names meet, and exchange tensors over what connects them") {
  const std::uint16_t port = free_port();
  std::atomic<int> connected{0};
  const auto connect = [&](Rendezvous& meeting) {
    ++connected;
    return make_tcp_communicator(meeting);
  };
  const std::vector<std::string> said = on_threads({0, 1, 2}, [&](int rank) {
    const std::unique_ptr<RankWorld> world = RankWorld::join(member(rank, 3, port), rank == 2 ? RankWorld::Connect() : connect);
    CHECK(world->communicator().rank() == rank);
    CHECK(world->communicator().world_size() == 3);
    CpuStream stream{std::make_shared<ThreadTeam>(1)};
    Tensor value = Tensor::from<float>({static_cast<float>(rank + 1)});
    world->communicator().all_reduce(value, value, Reduce::sum, stream).wait();
    CHECK(value.to_vector<float>() == std::vector<float>{6});
  });
  CHECK(said == std::vector<std::string>(3, "done"));
  CHECK(connected == 2);
}

TEST_CASE("a process that is alone is in no world") {
  CHECK(RankWorld::join(std::nullopt) == nullptr);
  CHECK(RankWorld::join(member(0, 1, 1)) == nullptr);
}
