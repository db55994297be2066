// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/activation.h>
#include <millrace/kernels/binary.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/runtime/program/ops/internal/unary_names.h>

namespace millrace::ops {
namespace {

constexpr UnaryName unaries[] = {
    {"neg", Unary::neg},
    {"abs", Unary::abs},
    {"sqrt", Unary::sqrt},
    {"reciprocal", Unary::reciprocal},
    {"log", Unary::log},
    {"exp", Unary::exp},
    {"erf", Unary::erf},
    {"floor", Unary::floor},
    {"ceil", Unary::ceil},
    {"round", Unary::round},
    {"sign", Unary::sign},
    {"sin", Unary::sin},
    {"cos", Unary::cos},
    {"atan", Unary::atan},
    {"logical_not", Unary::logical_not},
    {"is_nan", Unary::is_nan},
    {"is_inf", Unary::is_inf},
};

constexpr UnaryName activations[] = {
    {"sigmoid", Unary::sigmoid},
    {"tanh", Unary::tanh},
    {"relu", Unary::relu},
    {"leaky_relu", Unary::leaky_relu, "alpha"},
    {"elu", Unary::elu, "alpha"},
    {"selu", Unary::selu, "alpha", "gamma"},
    {"celu", Unary::celu, "alpha"},
    {"hard_sigmoid", Unary::hard_sigmoid, "alpha", "beta"},
    {"hard_swish", Unary::hard_swish},
    {"mish", Unary::mish},
    {"softplus", Unary::softplus},
    {"softsign", Unary::softsign},
    {"thresholded_relu", Unary::thresholded_relu, "alpha"},
    {"affine", Unary::affine, "alpha", "beta"},
    {"scaled_tanh", Unary::scaled_tanh, "alpha", "beta"},
};

void infer_unary(Unary kind, InferContext& context) {
  context.result(tensor_type(result_dtype(kind, context.tensor(0).dtype), context.tensor(0).shape));
}

OpKernel run_unary(Unary kind, UnaryParams params) {
  return [kind, params](OpContext& context) { context.set(0, unary(kind, params, context.tensor(0), context.stream())); };
}

OpDef unary_op(const UnaryName& named) {
  OpDef def = define(named.name, {"X"}, {"Out"});
  for (const char* const name : {named.alpha, named.beta})
    if (name != nullptr) def.attributes.emplace_back(name);
  def.infer = [kind = named.kind](InferContext& context) { infer_unary(kind, context); };
  def.prepare = [named](const PrepareContext& context) { return run_unary(named.kind, params_of(named, context.attributes())); };
  def.follow_rows = follow_same();
  def.vectorize = vectorize_elementwise;
  return def;
}

Unary gelu_kind(const Attributes& attributes) {
  const std::string approximate = attributes.get_or("approximate", std::string("none"));
  if (approximate == "none") return Unary::gelu;
  if (approximate == "tanh") return Unary::gelu_tanh;
  throw ProgramError("attribute 'approximate': expected none or tanh, found " + approximate);
}

OpDef gelu_op() {
  OpDef def = unary_op({"gelu", Unary::gelu});
  def.attributes = {"approximate"};
  def.infer = [](InferContext& context) { infer_unary(gelu_kind(context.attributes()), context); };
  def.prepare = [](const PrepareContext& context) { return run_unary(gelu_kind(context.attributes()), {}); };
  return def;
}

void infer_prelu(InferContext& context) {
  expect_float(context, 0);
  expect_same_dtype(context, 0, 1);
  const std::optional<DDim> shape = broadcast(context, {0, 1});
  if (shape && shape->rank() != context.tensor(0).rank())
    throw ProgramError("expected a slope that broadcasts to " + context.describe(0) + ", found " + context.describe(1));
  context.result(tensor_type(context.tensor(0).dtype, shape));
}

OpDef prelu_op() {
  OpDef def = define("prelu", {"X", "Slope"}, {"Out"});
  def.infer = infer_prelu;
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& context) { context.set(0, binary(Binary::prelu, context.tensor(0), context.tensor(1), context.stream())); };
  };
  def.follow_rows = follow_elementwise;
  // The result has the extents of X, which must have the leading axis where the slope has it.
  def.vectorize = [](Vectorizer& v, const Op& op) {
    const VarId x = batched_var(v, op.inputs[0], any_batched_var(v, op));
    v.bind(op.outputs[0], v.emit("prelu", {x, v.aligned(op.inputs[1], v.rank(op.inputs[0]))}).at(0), true);
  };
  return def;
}

}  // namespace

UnaryParams params_of(const UnaryName& named, const Attributes& attributes) {
  UnaryParams params = default_params(named.kind);
  if (named.alpha != nullptr) params.alpha = attributes.get_or(named.alpha, params.alpha);
  if (named.beta != nullptr) params.beta = attributes.get_or(named.beta, params.beta);
  return params;
}

const UnaryName* find_activation(const std::string& name) {
  for (const UnaryName& each : activations)
    if (name == each.name) return &each;
  return nullptr;
}

const UnaryName* find_unary(const std::string& name) {
  for (const UnaryName& each : unaries)
    if (name == each.name) return &each;
  return find_activation(name);
}

void add_activation_ops(OpRegistry& registry) {
  for (const UnaryName& each : unaries) registry.add(unary_op(each));
  for (const UnaryName& each : activations) registry.add(unary_op(each));
  registry.add(gelu_op());
  registry.add(prelu_op());
  add_elementwise_gradients(registry);
}

}  // namespace millrace::ops
