// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/format.h>

#include <doctest/doctest.h>

namespace millrace {
namespace {

TEST_CASE("arrays, slot states and slot values print what they are") {
  CHECK(fmt::format("{}", TensorArray(3).named("states")) == "array 'states' of 3 slots");
  CHECK(fmt::format("{:>9}", SlotState::written) == "  written");
  CHECK(fmt::format("{}", SlotState::cancelled) == "cancelled");
  const Tensor rows = Tensor::from<float>({1, 2});
  CHECK(fmt::format("{}", SlotValue(LoDTensor(rows))) == fmt::format("{}", LoDTensor(rows)));
  const SequenceOrder order(LoD::from_lengths({{1, 1}}), 0, true);
  CHECK(fmt::format("{}", SlotValue(LoDTensor(rows), order, 0)).find(", iteration 0 of order of [[1,1]]") != std::string::npos);
}

}  // namespace
}  // namespace millrace
