// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/activation.h>
#include <millrace/kernels/binary.h>
#include <millrace/kernels/where.h>
#include <millrace/runtime/program/internal/input_name.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/runtime/program/ops/internal/unary_names.h>

namespace millrace::ops {
namespace {

struct Named {
  const char* name;
  Binary kind;
  const char* first = "A";
  const char* second = "B";
};
constexpr Named binaries[] = {
    {"add", Binary::add},
    {"sub", Binary::sub},
    {"mul", Binary::mul},
    {"div", Binary::div},
    {"pow", Binary::pow},
    {"minimum", Binary::minimum},
    {"maximum", Binary::maximum},
    {"equal", Binary::equal},
    {"not_equal", Binary::not_equal},
    {"less", Binary::less},
    {"less_equal", Binary::less_equal},
    {"greater", Binary::greater},
    {"greater_equal", Binary::greater_equal},
    {"logical_and", Binary::logical_and},
    {"logical_or", Binary::logical_or},
    {"logical_xor", Binary::logical_xor},
    {"sigmoid_gradient", Binary::sigmoid_gradient, "Gradient", "Y"},
    {"tanh_gradient", Binary::tanh_gradient, "Gradient", "Y"},
};

void infer_binary(Binary kind, InferContext& context) {
  expect_same_dtype(context, 0, 1);
  context.result(tensor_type(result_dtype(kind, context.tensor(0).dtype), broadcast(context, {0, 1})));
}

OpKernel run_binary(Binary kind) {
  return [kind](OpContext& context) { context.set(0, binary(kind, context.tensor(0), context.tensor(1), context.stream())); };
}

OpDef binary_op(const Named& named) {
  const Binary kind = named.kind;
  OpDef def = define(named.name, {named.first, named.second}, {"Out"});
  def.infer = [kind](InferContext& context) { infer_binary(kind, context); };
  def.prepare = [kind](const PrepareContext&) { return run_binary(kind); };
  def.follow_rows = follow_elementwise;
  def.vectorize = vectorize_elementwise;
  return def;
}

OpDef mod_op() {
  OpDef def = binary_op({"mod", Binary::mod});
  def.attributes = {"fmod"};
  def.prepare = [](const PrepareContext& context) {
    return run_binary(context.attributes().get_or("fmod", false) ? Binary::fmod : Binary::mod);
  };
  return def;
}

OpDef where_op() {
  OpDef def = define("where", {"Condition", "A", "B"}, {"Out"});
  def.infer = [](InferContext& context) {
    expect_dtype(context, 0, DType::boolean);
    expect_same_dtype(context, 1, 2);
    context.result(tensor_type(context.tensor(1).dtype, broadcast(context, {0, 1, 2})));
  };
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& context) { context.set(0, where(context.tensor(0), context.tensor(1), context.tensor(2), context.stream())); };
  };
  def.follow_rows = follow_elementwise;
  def.vectorize = vectorize_elementwise;
  return def;
}

void infer_clip(InferContext& context) {
  if (!is_floating(context.tensor(0).dtype) && !is_integer(context.tensor(0).dtype))
    throw ProgramError("expected numbers as " + millrace::internal::input_name(context.program(), context.op(), 0) + ", found " +
                       context.describe(0));
  for (const std::size_t bound : {std::size_t{1}, std::size_t{2}}) {
    if (!context.has(bound)) continue;
    expect_same_dtype(context, 0, bound);
    expect_scalar(context, bound);
  }
  context.result(tensor_type(context.tensor(0).dtype, context.tensor(0).shape));
}

/// Bounds stretch over X, also those of extents [1] over a scalar X.
Tensor scalar_of(const Tensor& bound) { return bound.rank() == 0 ? bound : bound.reshape({}); }

void run_clip(OpContext& context) {
  Tensor clipped = context.tensor(0);
  if (context.has(1)) clipped = binary(Binary::maximum, clipped, scalar_of(context.tensor(1)), context.stream());
  if (context.has(2)) clipped = binary(Binary::minimum, clipped, scalar_of(context.tensor(2)), context.stream());
  context.set(0, std::move(clipped));
}

void vectorize_clip(Vectorizer& v, const Op& op) {
  VarId clipped = batched_var(v, op.inputs[0], any_batched_var(v, op));
  const int rank = v.rank(op.inputs[0]);
  for (std::size_t bound = 1; bound < op.inputs.size(); ++bound) {
    const VarId old = op.inputs[bound];
    if (old == no_var) continue;
    VarId made = v.get(old);
    // One bound for each sequence: as many ones behind N as X has axes.
    if (v.batched(old)) {
      Ints shape(static_cast<std::size_t>(rank + 1), 1);
      shape[0] = -1;
      made = v.emit("reshape", {made}, {{"shape", shape}}).at(0);
    }
    if (!v.batched(old) && v.rank(old) > 0) made = v.emit("reshape", {made}, {{"shape", Ints{}}}).at(0);
    clipped = v.emit(bound == 1 ? "maximum" : "minimum", {clipped, made}).at(0);
  }
  v.bind(op.outputs[0], clipped, true);
}

/// The greater of X and Min, then the lesser of that and Max; NaN stays.
OpDef clip_op() {
  OpDef def = define("clip", {"X", "Min?", "Max?"}, {"Out"});
  def.infer = infer_clip;
  def.prepare = [](const PrepareContext&) -> OpKernel { return run_clip; };
  def.follow_rows = follow_same();
  def.vectorize = vectorize_clip;
  return def;
}

}  // namespace

std::optional<Binary> find_binary(const std::string& name) {
  for (const Named& each : binaries)
    if (name == each.name) return each.kind;
  return std::nullopt;
}

void add_elementwise_ops(OpRegistry& registry) {
  for (const Named& each : binaries) registry.add(binary_op(each));
  registry.add(mod_op());
  registry.add(where_op());
  registry.add(clip_op());
}

}  // namespace millrace::ops
