// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <millrace/tensor/lod_tensor.h>
#include <millrace/tensor/sequence_order.h>

namespace millrace {

/// The result of a read of a TensorArray: the slot's rows (a LoDTensor, `tensor()` and `lod()`), and, when the array was made with an order,
/// that order and the iteration, which `shrink` needs. The boot that stands before slot 0 has iteration −1. Copies share the elements.
class SlotValue : public LoDTensor {
 public:
  SlotValue() = default;
  explicit SlotValue(LoDTensor value) : LoDTensor(std::move(value)) {}
  SlotValue(LoDTensor value, std::optional<SequenceOrder> order, std::int64_t iteration)
      : LoDTensor(std::move(value)), order_(std::move(order)), iteration_(iteration) {}

  bool has_order() const noexcept { return order_.has_value(); }
  /// ArgumentError when the array had none.
  const SequenceOrder& order() const {
    if (!order_) throw ArgumentError("slot value: expected an order, found none: the array it was read from was made without one");
    return *order_;
  }
  std::int64_t iteration() const noexcept { return iteration_; }

  /// "f32[2, 4] on cpu, iteration 3 of order of [[3,6,1]] at level 0, longest first: [1,0,2]".
  std::string to_string() const {
    return LoDTensor::to_string() + ", " +
           (order_ ? "iteration " + std::to_string(iteration_) + " of " + order_->to_string() : "without an order");
  }

 private:
  std::optional<SequenceOrder> order_;
  std::int64_t iteration_ = 0;
};

}  // namespace millrace
