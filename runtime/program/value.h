// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <variant>

#include <millrace/runtime/array/slot_value.h>
#include <millrace/runtime/array/tensor_array.h>
#include <millrace/tensor/lod_tensor.h>
#include <millrace/tensor/sequence_order.h>
#include <millrace/tensor/tensor_list.h>

namespace millrace {

/// The value of a var while a program runs: rows with their LoD (and, when they were read from an ordered array, order and iteration), an array, an
/// order, or a list of tensors. An optional that holds nothing is an empty Value. Copies share the contents.
class Value {
 public:
  Value() = default;
  Value(SlotValue tensor) : held_(std::move(tensor)) {}
  Value(LoDTensor tensor) : held_(SlotValue(std::move(tensor))) {}
  Value(Tensor tensor) : held_(SlotValue(LoDTensor(std::move(tensor)))) {}
  Value(TensorArray array) : held_(std::move(array)) {}
  Value(SequenceOrder order) : held_(std::move(order)) {}
  Value(TensorList list) : held_(std::move(list)) {}

  bool empty() const noexcept { return std::holds_alternative<std::monostate>(held_); }
  bool is_tensor() const noexcept { return std::holds_alternative<SlotValue>(held_); }
  bool is_array() const noexcept { return std::holds_alternative<TensorArray>(held_); }
  bool is_list() const noexcept { return std::holds_alternative<TensorList>(held_); }
  /// ValueKindError says what it holds, when that is something else.
  const SlotValue& tensor() const { return as<SlotValue>("a tensor"); }
  const TensorArray& array() const { return as<TensorArray>("an array"); }
  const SequenceOrder& order() const { return as<SequenceOrder>("an order"); }
  const TensorList& list() const { return as<TensorList>("a list of tensors"); }

 private:
  template <class T>
  const T& as(const char* wanted) const {
    if (const T* held = std::get_if<T>(&held_)) return *held;
    throw_kind(wanted);
  }
  [[noreturn]] void throw_kind(const char* wanted) const;

  std::variant<std::monostate, SlotValue, TensorArray, SequenceOrder, TensorList> held_;
};

}  // namespace millrace
