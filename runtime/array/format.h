// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace/runtime/array/slot_value.h>
#include <millrace/runtime/array/tensor_array.h>
#include <millrace/tensor/format.h>

/// fmt formatters for the values of `runtime/array/`. No public header includes this one.
namespace millrace {

/// "array 'states' of 3 slots".
inline std::string describe(const TensorArray& array) { return array.to_string(); }
/// The rows as a LoDTensor prints, then the iteration and the order.
inline std::string describe(const SlotValue& value) {
  const std::string rows = describe(static_cast<const LoDTensor&>(value));
  return value.has_order() ? rows + ", iteration " + std::to_string(value.iteration()) + " of " + value.order().to_string() : rows;
}
inline std::string describe(SlotState state) {
  switch (state) {
    case SlotState::empty: return "empty";
    case SlotState::waited: return "waited";
    case SlotState::written: return "written";
    case SlotState::failed: return "failed";
    case SlotState::cancelled: break;
  }
  return "cancelled";
}

}  // namespace millrace

template <>
struct fmt::formatter<millrace::TensorArray> : millrace::DescribeFormatter<millrace::TensorArray> {};
template <>
struct fmt::formatter<millrace::SlotValue> : millrace::DescribeFormatter<millrace::SlotValue> {};
template <>
struct fmt::formatter<millrace::SlotState> : millrace::DescribeFormatter<millrace::SlotState> {};
