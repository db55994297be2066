// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <millrace/runtime/models/import/with_onnx/importer.h>

namespace millrace::importing {

/// The dtype in which statistics of elements of `dtype` are computed: f32 for narrow floats, as ONNX's default `stash_type` says.
inline DType computed_in(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype; }

/// Arithmetic as ops, for rules that write a formula out. Numbers have the dtype that the formula is in, and are doubles where they are
/// written: a whole number is a var (`VarId`).
class Formula {
 public:
  Formula(Importer& to, DType dtype) : to_(to), dtype_(dtype) {}

  DType dtype() const noexcept { return dtype_; }
  /// The same arithmetic in another dtype.
  Formula in(DType dtype) const { return {to_, dtype}; }
  VarId number(double value) const { return to_.literal(scalar_of(dtype_, value)); }
  VarId op(const char* name, VarId x) const { return to_.emit1(name, {x}); }
  VarId op(const char* name, VarId a, VarId b) const { return to_.emit1(name, {a, b}); }
  VarId op(const char* name, VarId a, double b) const { return to_.emit1(name, {a, number(b)}); }
  template <class B>
  VarId plus(VarId a, B b) const {
    return op("add", a, b);
  }
  template <class B>
  VarId minus(VarId a, B b) const {
    return op("sub", a, b);
  }
  template <class B>
  VarId times(VarId a, B b) const {
    return op("mul", a, b);
  }
  template <class B>
  VarId over(VarId a, B b) const {
    return op("div", a, b);
  }
  VarId where(VarId condition, VarId yes, VarId no) const { return to_.emit1("where", {condition, yes, no}); }
  /// `x` in the dtype of the formula.
  VarId taken(VarId x) const { return cast(x, dtype_); }
  VarId cast(VarId x, DType dtype) const { return to_.type(x).dtype == dtype ? x : to_.emit1("cast", {x}, {{"to", dtype}}); }
  VarId limited(VarId x, double low, double high) const { return to_.emit1("clip", {x, number(low), number(high)}); }
  VarId reduced(const char* kind, VarId x, const Ints& axes, bool keepdims) const {
    return to_.emit1("reduce", {x}, {{"kind", std::string(kind)}, {"axes", axes}, {"keepdims", keepdims}});
  }
  VarId reshaped(VarId x, const Ints& shape) const { return to_.emit1("reshape", {x}, {{"shape", shape}}); }
  VarId unsqueezed(VarId x, const Ints& axes) const { return to_.emit1("unsqueeze", {x}, {{"axes", axes}}); }

 private:
  Importer& to_;
  DType dtype_;
};

}  // namespace millrace::importing
