// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <millrace/runtime/program/gradient.h>
#include <millrace/runtime/program/ops/internal/inference.h>

namespace millrace::ops {

/// Helpers of the gradient rules: arithmetic on the vars of a GradientContext. Terms carry no LoD (`drop_lod` is appended where a forward
/// value has some), but for those of `with_lod`.

/// A var where a rule appends. An undefined term is a gradient of zero.
class Term {
 public:
  Term() = default;
  Term(GradientContext& at, VarId var) : at_(&at), var_(var) {}

  bool defined() const noexcept { return var_ != no_var; }
  GradientContext& at() const { return *at_; }
  VarId var() const noexcept { return var_; }
  const VarType& type() const { return at_->program().var(var_).type; }
  DType dtype() const { return type().dtype; }

 private:
  GradientContext* at_ = nullptr;
  VarId var_ = no_var;
};

/// A forward input or output; the gradient of an output.
Term value(GradientContext& context, std::size_t input);
Term result(GradientContext& context, std::size_t output = 0);
Term gradient(GradientContext& context, std::size_t output = 0);
/// The rank of a forward input. Throws UnsupportedError where it is unknown.
int rank_of(const GradientContext& context, std::size_t input);
/// A forward input or output with its LoD.
Term with_lod(GradientContext& context, std::size_t input);
Term result_with_lod(GradientContext& context, std::size_t output = 0);
/// The same rows without LoD.
Term plain(const Term& x);

/// An op of one output; of several. An undefined term stands for an input that is absent.
Term call(const std::string& op, const std::vector<Term>& inputs, Attributes attributes = {});
std::vector<Term> call_all(const std::string& op, const std::vector<Term>& inputs, Attributes attributes = {});

/// A scalar of a dtype; an i64 list.
Term number(GradientContext& context, double value, DType dtype);
Term list(GradientContext& context, const Ints& values);

Term operator+(const Term& a, const Term& b);
Term operator-(const Term& a, const Term& b);
Term operator*(const Term& a, const Term& b);
Term operator/(const Term& a, const Term& b);
Term operator-(const Term& a);
Term operator+(const Term& a, double b);
Term operator*(const Term& a, double b);
Term operator-(double a, const Term& b);
Term operator/(double a, const Term& b);
Term where(const Term& condition, const Term& a, const Term& b);
/// `a` where the condition holds, else 0.
Term masked(const Term& condition, const Term& a);
/// A comparison with a number: less, less_equal, equal, greater …
Term compare(const std::string& op, const Term& a, double b);
/// `x` of another dtype; `x` itself where it has that one.
Term cast_to(const Term& x, DType dtype);
/// f32 for f16 and bf16, else the dtype itself: what sums are made in.
DType summing(DType dtype);
Term reduced(const std::string& kind, const Term& x, const Ints& axes, bool keepdims);
/// Axes of one element put in, or taken away; `x` itself where there are none.
Term unsqueezed(const Term& x, const Ints& axes);
Term squeezed(const Term& x, const Ints& axes);
Term reshaped_to(const Term& x, const Ints& shape);
Term permuted(const Term& x, const Ints& perm);
/// i64 [rank], or axes [begin, end) of it; an extent as an i64 scalar.
Term shape_of(const Term& x);
Term shape_of(const Term& x, std::int64_t begin, std::int64_t end);
Term extent_of(const Term& x, int axis);
/// Zeros with the extents of `like`, and another dtype perhaps.
Term zeros_like(const Term& like, DType dtype);
inline Term zeros_like(const Term& like) { return zeros_like(like, like.dtype()); }
/// 0, 1, … count − 1, for an i64 scalar.
Term numbers_to(const Term& count);
Tensor zeros_scalar(DType dtype);
/// The gradient of `x` [.., extent, ..] of `rank` axes from that of `gather(x, index, axis)`: blocks are added one after the other, in the order
/// of the index, f16 and bf16 in f32.
Term scattered_along(const Term& g, const Term& index, const Term& extent, int axis, int rank);
/// `x` stretched along `axes`, where it has 1, to the extents of `like`.
Term stretched(const Term& x, const Term& like, const Ints& axes);

/// Sets a gradient that has the extents of the value.
void set(GradientContext& context, std::size_t input, const Term& gradient);
/// Sets a gradient that has the extents of output `output`, to which the input was broadcast: it is summed over the axes that were
/// stretched, in the order of reduce.h. Nothing is appended where types tell that none was; the op `sum_to` where only a run can.
void set_summed(GradientContext& context, std::size_t input, const Term& gradient, std::size_t output = 0);
/// Sets the gradient of an input of one element: the sum of all.
void set_total(GradientContext& context, std::size_t input, const Term& gradient);

/// Whether the types and ops of the program tell that axis `a_axis` of `a` always has as many elements as axis `b_axis` of `b`.
bool same_extents(const Program& program, VarId a, int a_axis, VarId b, int b_axis);

/// **A gradient by the chain rule over plain ops.** A rule computes the value of its op once more, from ops that have rules, and gets the
/// gradients of what it began with:
///
///     Tape tape(context);
///     const Term y = …;                       // built with `call` and the operators on terms of tape.at()
///     tape.seed(y, gradient(context));
///     tape.run({x.var()});
///     set(context, 0, tape.gradient(x));
class Tape final : public GradientContext {
 public:
  explicit Tape(GradientContext& outer) : outer_(outer) {}
  GradientContext& at() { return *this; }
  /// A term of the outer context as one of the tape.
  Term leaf(const Term& x) { return Term(*this, x.var()); }

  /// Adds to the gradient of `x`; nothing where `gradient` is undefined.
  void seed(const Term& x, const Term& gradient);
  /// Goes back over what was appended so far.
  void run(const std::vector<Term>& leaves);
  /// The gradient of `x` as a term of the outer context; undefined where it is zero.
  Term gradient_of(const Term& x) const;

  const Program& program() const override { return outer_.program(); }
  const Op& op() const override { return current_ != nullptr ? *current_ : outer_.op(); }
  bool wants(std::size_t input) const override { return active_.contains(op().inputs.at(input)); }
  VarId input(std::size_t input) override { return op().inputs.at(input); }
  VarId output(std::size_t output) override { return op().outputs.at(output); }
  VarId gradient(std::size_t output) const override;
  std::vector<VarId> append(Op op) override;
  void set(std::size_t input, VarId gradient) override;

 private:
  void accumulate(VarId var, VarId gradient);

  GradientContext& outer_;
  std::vector<Op> ops_;
  std::set<VarId> active_;  ///< vars that depend on a leaf
  std::map<VarId, VarId> gradients_;
  const Op* current_ = nullptr;
};

}  // namespace millrace::ops
