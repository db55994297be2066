// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/multiprocessor_reserve.h>

#include <doctest/doctest.h>

#include <optional>

using namespace millrace;

TEST_CASE("multiprocessors of a device are reserved as long as somebody wants them") {
  constexpr int device = 1000;  // of nobody else
  CHECK(reserved_multiprocessors(device) == 0);
  std::optional<MultiprocessorReserve> one(std::in_place, device, 2);
  {
    const MultiprocessorReserve other(device, 5), elsewhere(device + 1, 3);
    CHECK(reserved_multiprocessors(device) == 7);
    CHECK(reserved_multiprocessors(device + 1) == 3);
  }
  CHECK(reserved_multiprocessors(device) == 2);
  one.reset();
  CHECK(reserved_multiprocessors(device) == 0);
}
