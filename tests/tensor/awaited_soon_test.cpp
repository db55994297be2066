// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/awaited_soon.h>

#include <doctest/doctest.h>

#include <optional>

using namespace millrace;

TEST_CASE("work of a device is awaited soon while an object says so") {
  CHECK(!AwaitedSoon::any());
  std::optional<AwaitedSoon> first(std::in_place), second(std::in_place);
  CHECK(AwaitedSoon::any());
  first.reset();
  CHECK(AwaitedSoon::any());
  second.reset();
  CHECK(!AwaitedSoon::any());
}
