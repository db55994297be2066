// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/crowds.h>

#include <vector>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("the first to go is the oldest of the address that has the most, and of equal addresses the oldest of all") {
  std::vector<int> members(10);
  Crowds<int> crowds;
  const auto first = [&] { return &crowds.first_to_go() - members.data(); };
  CHECK(crowds.empty());
  crowds.add("a", 0, &members[0]);
  crowds.add("b", 1, &members[1]);
  CHECK(first() == 0);
  crowds.add("b", 2, &members[2]);
  crowds.add("c", 3, &members[3]);
  CHECK(first() == 1);
  crowds.add("b", 2, &members[2]);  // a second time
  CHECK(crowds.size() == 4);
  crowds.remove("b", 1);
  CHECK(first() == 0);
  crowds.remove("a", 0);
  CHECK(first() == 2);
  crowds.remove("a", 0);
  crowds.remove("b", 7);
  crowds.add("c", 4, &members[4]);
  CHECK(first() == 3);
  CHECK(crowds.size() == 3);
  crowds.remove("c", 3);
  crowds.remove("c", 4);
  crowds.remove("b", 2);
  CHECK(crowds.empty());
}
