// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <variant>

#include <millrace/runtime/array/slot_value.h>
#include <millrace/runtime/array/tensor_array.h>
#include <millrace/tensor/lod_tensor.h>
#include <millrace/tensor/pool.h>
#include <millrace/tensor/sequence_order.h>
#include <millrace/tensor/tensor_list.h>

namespace millrace {

/// The value of a var while a program runs: rows with their LoD (and, when they were read from an ordered array, order and iteration), an array, an
/// order, or a list of tensors. An optional that holds nothing is an empty Value. Copies share the contents, which never change: a Value is one
/// pointer, which an interpreter moves from scope to scope.
class Value {
 public:
  Value() = default;
  Value(SlotValue tensor) : held_(make_pooled<const Held>(std::move(tensor))) {}
  Value(LoDTensor tensor) : held_(make_pooled<const Held>(std::in_place_type<SlotValue>, std::move(tensor))) {}
  Value(Tensor tensor) : held_(make_pooled<const Held>(std::in_place_type<SlotValue>, std::move(tensor))) {}
  Value(TensorArray array) : held_(make_pooled<const Held>(std::move(array))) {}
  Value(SequenceOrder order) : held_(make_pooled<const Held>(std::move(order))) {}
  Value(TensorList list) : held_(make_pooled<const Held>(std::move(list))) {}

  bool empty() const noexcept { return held_ == nullptr; }
  bool is_tensor() const noexcept { return holds<SlotValue>(); }
  bool is_array() const noexcept { return holds<TensorArray>(); }
  bool is_list() const noexcept { return holds<TensorList>(); }
  /// ValueKindError says what it holds, when that is something else.
  const SlotValue& tensor() const { return as<SlotValue>("a tensor"); }
  const TensorArray& array() const { return as<TensorArray>("an array"); }
  const SequenceOrder& order() const { return as<SequenceOrder>("an order"); }
  const TensorList& list() const { return as<TensorList>("a list of tensors"); }

 private:
  using Held = std::variant<SlotValue, TensorArray, SequenceOrder, TensorList>;

  template <class T>
  bool holds() const noexcept {
    return held_ != nullptr && std::holds_alternative<T>(*held_);
  }
  template <class T>
  const T& as(const char* wanted) const {
    if (const T* held = std::get_if<T>(held_.get())) return *held;
    throw_kind(wanted);
  }
  [[noreturn]] void throw_kind(const char* wanted) const;

  std::shared_ptr<const Held> held_;
};

}  // namespace millrace
