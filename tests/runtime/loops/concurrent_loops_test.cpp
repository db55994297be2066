// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/concurrent_loops.h>

#include <optional>
#include <set>

#include <doctest/doctest.h>

#include <millrace/tensor/device.h>

using namespace millrace;

TEST_CASE("a loop of a group may start once its leader has decided and the stages before it have ended") {
  const std::set<VarId> none;
  const Op leader, second, third, alone;
  ConcurrentLoops loops;
  loops.add({&leader, &second, &third}, {false, false, false}, none);
  CHECK(loops.may_start(&alone));
  CHECK(loops.may_start(&leader));
  CHECK_FALSE(loops.may_start(&second));
  {
    const ConcurrentLoops::Decision decision(loops.led_by(&leader));
  }
  CHECK(loops.may_start(&second));
  CHECK_FALSE(loops.may_start(&third));
  {
    const ConcurrentLoops::End end(loops.stage(&second));
  }
  CHECK(loops.may_start(&third));
}

TEST_CASE("the size of a team is known at once on a stream of the host that nobody else uses") {
  CpuDevice device(2);
  CHECK(team_size_now(device.stream(0)) == std::optional<int>(2));
}
