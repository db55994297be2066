// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include <millrace/runtime/array/tensor_array.h>
#include <millrace/runtime/builder/var.h>

namespace millrace::build {

using ::millrace::share;
inline constexpr bool sort_by_length = true;
inline constexpr bool unsorted = false;

/// The order of rows that `unpack` hands to `pack` and to arrays.
class Order {
 public:
  explicit Order(Var var) : var_(std::move(var)) {}
  const Var& var() const noexcept { return var_; }

 private:
  Var var_;
};

/// The symbolic TensorArray of a program: numbered slots, each a one-shot future of a tensor. Spelled `TensorArray` here, as in the designs.
class ArrayVar {
 public:
  /// `size` slots. The dtype and shape of a slot are those of the first write.
  explicit ArrayVar(const Var& size, const std::string& name = {});
  ArrayVar(const Var& size, const Order& order, const std::string& name = {});
  /// `size` slots of a given type: for arrays that are read, in the order of building, before anything is written to them.
  static ArrayVar typed(const Var& size, const VarType& slot, const std::string& name = {});
  /// `size` slots; should it be 0, then `extents`, an i64 list, holds for the first axes of a slot where building knew none.
  static ArrayVar with_extents(const Var& size, const Var& extents, const std::string& name = {});
  /// As many slots as get written.
  static ArrayVar growable(const std::string& name = {});
  /// At most `capacity` unread slots at a time.
  static ArrayVar window(std::int64_t capacity, const std::string& name = {});
  /// Slot i is index i of `axis` of `x`.
  static ArrayVar unstack(const Var& x, int axis = 0);
  /// For builder functions that hand out arrays.
  static ArrayVar of(const Var& var) { return ArrayVar(var, Adopt{}); }

  const Var& var() const noexcept { return var_; }
  Var size() const;
  /// `i < size` of an array that may still grow: true once slot `index` is written, false once there will be none.
  Var has(const Var& index) const;
  Var read(const Var& index) const;
  /// `boot`, re-ordered like the batch, for index −1.
  Var read(const Var& index, const Var& boot) const;
  void write(const Var& index, const Var& value, ::millrace::TensorArray::Mode mode = share) const;
  void append(const Var& value, ::millrace::TensorArray::Mode mode = share) const;
  Var stack(int axis = 0) const;
  Var concat() const;
  Var gather(const Var& index) const;

  /// `states[i]` reads, `states[i] = v` writes.
  class Element;
  Element operator[](const Var& index) const;

 private:
  struct Adopt {};
  ArrayVar(Var var, Adopt) : var_(std::move(var)) {}
  Var var_;
};
using TensorArray = ArrayVar;

class ArrayVar::Element {
 public:
  Element(ArrayVar array, Var index) : array_(std::move(array)), index_(std::move(index)) {}
  operator Var() const { return array_.read(index_); }
  Element(const Element&) = default;
  void operator=(const Var& value) const { array_.write(index_, value); }
  /// `states[i] = outputs[j]` reads and writes too.
  void operator=(const Element& other) const { array_.write(index_, other); }

 private:
  ArrayVar array_;
  Var index_;
};

/// Takes ragged rows apart: step t holds item t of every sequence of `level` that still lives.
std::pair<ArrayVar, Order> unpack(const Var& x, int level, bool sort);
/// The slots of `array`, which was made with the order `from`, as an array of the order `to` over the same sequences, such as one from their ends.
ArrayVar reorder_steps(const ArrayVar& array, const Order& from, const Order& to);
/// Puts them together again, in the caller's order.
Var pack(const ArrayVar& array, int level, const Order& order);

}  // namespace millrace::build
