// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include <millrace/runtime/array/tensor_array.h>
#include <millrace/tensor/lod_tensor.h>
#include <millrace/tensor/sequence_order.h>

namespace millrace {

/// Where a value that was read from an ordered array stands: `shrink` and a re-ordered boot need it.
struct StepTag {
  SequenceOrder order;
  std::int64_t turn = 0;
};

/// What a var holds while a program runs.
class Value {
 public:
  Value() = default;
  Value(LoDTensor tensor) : held_(std::move(tensor)) {}
  Value(Tensor tensor) : held_(LoDTensor(std::move(tensor))) {}
  Value(TensorArray array) : held_(std::move(array)) {}
  Value(SequenceOrder order) : held_(std::move(order)) {}

  bool empty() const noexcept { return std::holds_alternative<std::monostate>(held_); }
  bool is_tensor() const noexcept { return std::holds_alternative<LoDTensor>(held_); }
  /// std::bad_variant_access when it holds something else: a program's types were checked when it was built.
  const LoDTensor& tensor() const { return std::get<LoDTensor>(held_); }
  const TensorArray& array() const { return std::get<TensorArray>(held_); }
  const SequenceOrder& order() const { return std::get<SequenceOrder>(held_); }

  std::optional<StepTag> tag;

 private:
  std::variant<std::monostate, LoDTensor, TensorArray, SequenceOrder> held_;
};

}  // namespace millrace
