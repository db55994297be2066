// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/attention.h>
#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/matrix_recurrence.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/arithmetic_names.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/tensor/copy.h>

/// Attention as one op, and the loop of linear attention as one, made when a program is compiled (lowering/join_attention.h, join_matrices.h).
namespace millrace::ops {
namespace {

constexpr std::size_t operands_begin = 8;

/// The attributes of an op. Axes are views of the inputs, and of the result; where there are three of them, the first one is that of the heads.
struct Form {
  Attention call;
  std::vector<int> q_axes, k_axes, v_axes;

  explicit Form(const Attributes& attributes)
      : q_axes(axes(attributes, "q_axes")), k_axes(axes(attributes, "k_axes")), v_axes(axes(attributes, "v_axes")) {
    call.scale = attributes.get_or("scale", 1.0);
    call.shares_heads = attributes.get_or("shares_heads", false);
    call.steps = steps_of(attributes.get_or("steps", std::string()));
    call.out_axes = axes(attributes, "out_axes");
    if (k_axes.size() != q_axes.size() || v_axes.size() != q_axes.size() || call.out_axes.size() != q_axes.size())
      throw ProgramError("expected as many axes of each operand and of the result");
    if (call.out_axes.back() + 1 != static_cast<int>(q_axes.size())) throw ProgramError("attribute out_axes: expected the last axis last");
  }

 private:
  static std::vector<int> axes(const Attributes& attributes, const char* name) {
    const Ints given = attributes.get_or(name, Ints{0, 1, 2, 3});
    if (given.size() != 3 && given.size() != 4)
      throw ProgramError(std::string("attribute ") + name + ": expected three or four axes, found " + list_text(given));
    return checked_axes(given, static_cast<int>(given.size()));
  }
};

void infer_attention(InferContext& context) {
  const Form form(context.attributes());
  expect_float(context, 0);
  const auto rank = static_cast<int>(form.q_axes.size());
  for (const std::size_t input : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    expect_same_dtype(context, 0, input);
    expect_rank(context, input, rank);
  }
  // Operands may stretch the scores, so that q alone does not tell the extents of the result.
  DDim shape;
  for (const int axis : form.call.out_axes)
    shape = shape.inserted(shape.rank(), axis + 1 == rank ? extent(context, 2, form.v_axes.back()) : DDim::unknown);
  context.result(tensor_type(context.tensor(0).dtype, shape));
}

/// The view with four axes.
Tensor viewed(const Tensor& x, const std::vector<int>& axes) {
  const Tensor view = x.permute(axes);
  if (view.rank() == 4) return view;
  const auto first = (static_cast<const std::byte*>(view.raw()) - view.storage()->data()) / static_cast<std::int64_t>(size_of(x.dtype()));
  return Tensor(x.dtype(), view.dims().inserted(0, 1), view.strides().inserted(0, 1), first, view.storage());
}

OpKernel prepare_attention(const PrepareContext& context) {
  const Attributes& attributes = context.attributes();
  Form form(attributes);
  const bool flat = form.q_axes.size() == 3;
  if (flat) {
    for (int& axis : form.call.out_axes) ++axis;
    form.call.out_axes.insert(form.call.out_axes.begin(), 0);
  }
  return [form = std::move(form), flat, mask_value = attributes.get_or("mask_value", 0.0),
          mask_keeps = attributes.get_or("mask_keeps", false), hidden_keeps = attributes.get_or("hidden_keeps", false)](OpContext& run) {
    Attention call = form.call;
    call.q = viewed(run.tensor(0), form.q_axes);
    call.k = viewed(run.tensor(1), form.k_axes);
    call.v = viewed(run.tensor(2), form.v_axes);
    if (run.has(3)) call.offset = run.tensor(3);
    if (run.has(4)) call.bias_queries = std::max<std::int64_t>(0, run.tensor(4).item_int());
    if (run.has(5)) call.bias_keys = std::max<std::int64_t>(0, run.tensor(5).item_int());
    if (run.has(6)) call.mask = ScoreMask{run.tensor(6), mask_value, mask_keeps};
    if (run.has(7)) call.hidden = ScoreMask{run.tensor(7), 0, hidden_keeps};
    for (std::size_t input = operands_begin; input < run.inputs(); ++input) call.operands.push_back(run.tensor(input));
    const Tensor made = attention(call, run.stream());
    run.set(0, flat ? made.reshape(made.dims().erased(0)) : made);
  };
}

// ---- matrix_recurrence

constexpr std::size_t past = 3, decay = 4, rate = 5;

void infer_matrix_recurrence(InferContext& context) {
  expect_float(context, 0);
  for (const std::size_t input : {std::size_t{1}, std::size_t{2}, past}) expect_same_dtype(context, 0, input);
  const auto width = [&](std::size_t input) {
    const VarType& type = context.tensor(input);
    return type.shape && type.rank() >= 3 ? product_of(*type.shape, 2, type.rank()) : DDim::unknown;
  };
  const bool known = width(0) > 0 && width(1) > 0 && width(2) > 0;
  const DDim reads{extent(context, 0, 0), extent(context, 0, 1), known ? width(2) / width(0) * width(1) : DDim::unknown};
  context.result(tensor_type(context.tensor(0).dtype, reads));
  VarType last = context.tensor(past);
  const std::int64_t sequences = extent(context, 0, context.attributes().get<std::int64_t>("steps") == 0 ? 1 : 0);
  if (last.shape && last.rank() > 0 && (*last.shape)[0] == 1 && sequences != 1) (*last.shape)[0] = DDim::unknown;
  context.result(last);
}

/// Inputs of one sequence before several states serve all of them, as in a loop of the ops.
void give_each_state_rows(MatrixRecurrence& call, StreamRef stream) {
  const int axis = call.steps == 0 ? 1 : 0;
  const std::int64_t states = call.past.rank() > 0 ? call.past.dim(0) : 1;
  if (states <= 1) return;
  const auto widen = [&](Tensor& x) {
    if (x.rank() < 3 || x.dim(axis) != 1) return;
    DDim dims = x.dims();
    dims[axis] = states;
    x = contiguous(expand(x, dims, stream), stream);
  };
  for (Tensor* const x : {&call.key, &call.value, &call.query}) widen(*x);
  for (std::optional<Tensor>* const x : {&call.decay, &call.rate})
    if (*x) widen(**x);
}

OpKernel prepare_matrix_recurrence(const PrepareContext& context) {
  MatrixRecurrence form;
  form.heads = context.attributes().get<std::int64_t>("heads");
  form.corrects = context.attributes().get_or("corrects", false);
  form.steps = static_cast<int>(context.attributes().get<std::int64_t>("steps"));
  return [form](OpContext& run) {
    MatrixRecurrence call = form;
    call.key = run.tensor(0);
    call.value = run.tensor(1);
    call.query = run.tensor(2);
    call.past = run.tensor(past);
    if (run.has(decay)) call.decay = run.tensor(decay);
    if (run.has(rate)) call.rate = run.tensor(rate);
    give_each_state_rows(call, run.stream());
    MatrixReads made = matrix_recurrence(call, run.stream());
    run.set(0, std::move(made.out));
    run.set(1, std::move(made.last));
  };
}

}  // namespace

void add_attention_ops(OpRegistry& registry) {
  OpDef def =
      define("attention", {"Q", "K", "V", "Offset?", "Queries?", "Keys?", "Mask?", "Hidden?", "Operands..."}, {"Out"},
             {"scale", "shares_heads", "steps", "q_axes", "k_axes", "v_axes", "out_axes", "mask_value", "mask_keeps", "hidden_keeps"});
  def.host_inputs = {4, 5};
  def.infer = infer_attention;
  def.prepare = prepare_attention;
  set_made_for_runs(def);
  registry.add(std::move(def));

  OpDef matrices =
      define("matrix_recurrence", {"Key", "Value", "Query", "Past", "Decay?", "Rate?"}, {"Out", "Last"}, {"heads", "corrects", "steps"});
  matrices.infer = infer_matrix_recurrence;
  matrices.prepare = prepare_matrix_recurrence;
  set_made_for_runs(matrices);
  registry.add(std::move(matrices));
}

}  // namespace millrace::ops
