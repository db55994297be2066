// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>
#include <millrace/runtime/models/import/with_onnx/tensor_proto.h>
#include <millrace/tensor/checked.h>

namespace millrace::importing {
namespace {

/// The same op under our name, with no attribute.
void same(Importer& to, const Node& node, const char* op) { to.give(node, op, to.all_in(node)); }

/// Two inputs that broadcast. Opset 6 said by `axis` where the axes of B stand among those of A; numpy's way came with 7.
void pairwise(Importer& to, const Node& node, const char* op) {
  const VarId a = to.in(node, 0);
  VarId b = to.in(node, 1);
  if (to.opset() < 7 && node.has_attribute("axis")) {
    const std::int64_t behind = to.rank(a) - axis_of("attribute axis", node.integer("axis", 0), to.rank(a)) - to.rank(b);
    Ints axes;
    for (std::int64_t i = 0; i < behind; ++i) axes.push_back(-1 - i);
    if (!axes.empty()) b = to.emit1("unsqueeze", {b}, {{"axes", axes}});
  }
  to.give(node, op, {a, b});
}

/// The slope of opset 6 is one number for each channel, axis 1.
void prelu(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0);
  VarId slope = to.in(node, 1);
  if (to.opset() < 7 && to.rank(slope) == 1 && to.rank(x) > 1) {
    Ints shape(static_cast<std::size_t>(to.rank(x) - 1), 1);
    shape[0] = -1;
    slope = to.emit1("reshape", {slope}, {{"shape", shape}});
  }
  to.give(node, op, {x, slope});
}

/// An activation: the numbers that are given, the op's own defaults (ONNX's) for those that are not.
void activation(Importer& to, const Node& node, const char* op) {
  Attributes attributes;
  for (const char* name : {"alpha", "beta", "gamma"})
    if (node.has_attribute(name)) attributes.set(name, node.real(name, 0));
  to.give(node, op, {to.in(node, 0)}, attributes);
}

void gelu(Importer& to, const Node& node, const char* op) {
  to.give(node, op, {to.in(node, 0)}, {{"approximate", node.word("approximate", "none", {"none", "tanh"})}});
}

/// Max, Min, Sum of any number of inputs: one after the other.
VarId fold(Importer& to, const std::vector<VarId>& inputs, const char* op) {
  VarId result = inputs.at(0);
  for (std::size_t i = 1; i < inputs.size(); ++i) result = to.emit1(op, {result, inputs[i]});
  return result;
}

void variadic(Importer& to, const Node& node, const char* op) {
  std::vector<VarId> inputs = to.all_in(node);
  if (inputs.size() < 2) return to.give(node, "identity", {to.in(node, 0)});
  const VarId last = inputs.back();
  inputs.pop_back();
  to.give(node, op, {fold(to, inputs, op), last});
}

void mean(Importer& to, const Node& node, const char*) {
  to.in(node, 0);
  const VarId sum = fold(to, to.all_in(node), "add");
  to.give(node, "div", {sum, to.literal(scalar_of(to.type(sum).dtype, static_cast<double>(node.inputs())))});
}

void mod(Importer& to, const Node& node, const char* op) {
  to.give(node, op, {to.in(node, 0), to.in(node, 1)}, {{"fmod", node.flag("fmod", false)}});
}

/// ONNX lets base and exponent differ in dtype; the result has that of the base.
void pow(Importer& to, const Node& node, const char* op) {
  const VarId base = to.in(node, 0);
  const VarId exponent = to.in(node, 1);
  const DType dtype = to.type(base).dtype;
  if (dtype == to.type(exponent).dtype) return to.give(node, op, {base, exponent});
  if (is_floating(dtype)) return to.give(node, op, {base, to.emit1("cast", {exponent}, {{"to", dtype}})});
  const VarId wide = to.emit1(op, {to.emit1("cast", {base}, {{"to", DType::f64}}), to.emit1("cast", {exponent}, {{"to", DType::f64}})});
  to.give(node, "cast", {wide}, {{"to", dtype}});
}

/// Bounds were attributes up to opset 10.
void clip(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0);
  if (to.opset() >= 11) return to.give(node, op, {x, to.in_or_none(node, 1), to.in_or_none(node, 2)});
  const auto bound = [&](const char* name) {
    return node.has_attribute(name) ? to.literal(scalar_of(to.type(x).dtype, node.real(name, 0))) : no_var;
  };
  const VarId low = bound("min");
  const VarId high = bound("max");
  to.give(node, op, {x, low, high});
}

void is_inf(Importer& to, const Node& node, const char* op) {
  const bool negative = node.flag("detect_negative", true);
  const bool positive = node.flag("detect_positive", true);
  const VarId x = to.in(node, 0);
  if (negative && positive) return to.give(node, op, {x});
  const VarId zero = to.literal(scalar_of(to.type(x).dtype, 0));
  // With neither asked for, `x < 0 and x > 0` is what no element is.
  const VarId side = to.emit1(positive ? "greater" : "less", {x, zero});
  const VarId found = to.emit1("logical_and", {to.emit1(op, {x}), side});
  if (negative || positive) return to.give(node, "identity", {found});
  to.give(node, "logical_and", {found, to.emit1("greater", {x, zero})});
}

/// where(x < −λ, x + bias, where(x > λ, x − bias, 0))
void shrink(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const DType dtype = to.type(x).dtype;
  const auto number = [&](double value) { return to.literal(scalar_of(dtype, value)); };
  const double lambda = node.real("lambd", 0.5);
  const VarId bias = number(node.real("bias", 0));
  const VarId above = to.emit1("where", {to.emit1("greater", {x, number(lambda)}), to.emit1("sub", {x, bias}), number(0)});
  to.give(node, "where", {to.emit1("less", {x, number(-lambda)}), to.emit1("add", {x, bias}), above});
}

/// x · sigmoid(α·x)
void swish(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const VarId scaled = to.emit1("mul", {x, to.literal(scalar_of(to.type(x).dtype, node.real("alpha", 1)))});
  to.give(node, "mul", {x, to.emit1("sigmoid", {scaled})});
}

void cast(Importer& to, const Node& node, const char* op) {
  const DType dtype = dtype_of_onnx(checked_cast<int>(node.integer("to", 0)), "attribute to");
  to.give(node, op, {to.in(node, 0)}, {{"to", dtype}});
}

void cast_like(Importer& to, const Node& node, const char*) {
  to.give(node, "cast", {to.in(node, 0)}, {{"to", to.type(to.in(node, 1)).dtype}});
}

/// A program runs what was trained: nothing is dropped.
void dropout(Importer& to, const Node& node, const char*) {
  if (node.has(2)) {
    const Tensor* training = to.known(node, 2);
    const Tensor* ratio = to.known(node, 1);
    const bool keeps = ratio != nullptr && ratio->elements() == 1 && ratio->item() == 0;
    if (!keeps && (training == nullptr || training->item() != 0))
      throw UnsupportedError("training_mode: expected false in the file, or a ratio of 0, found something else");
  }
  const VarId x = to.in(node, 0);
  to.give(node, "identity", {x});
  if (node.wants(1))
    to.bind(node, 1, to.emit1("constant_of_shape", {to.emit1("shape", {x})}, {{"value", Tensor::from<bool>({true})}}, node.output(1)));
}

constexpr Rule rules[] = {
    {"Add", pairwise, "add"},
    {"Sub", pairwise, "sub"},
    {"Mul", pairwise, "mul"},
    {"Div", pairwise, "div"},
    {"Pow", pow, "pow"},
    {"Mod", mod, "mod"},
    {"Max", variadic, "maximum"},
    {"Min", variadic, "minimum"},
    {"Sum", variadic, "add"},
    {"Mean", mean},
    {"Equal", pairwise, "equal"},
    {"Less", pairwise, "less"},
    {"LessOrEqual", same, "less_equal"},
    {"Greater", pairwise, "greater"},
    {"GreaterOrEqual", same, "greater_equal"},
    {"And", pairwise, "logical_and"},
    {"Or", pairwise, "logical_or"},
    {"Xor", pairwise, "logical_xor"},
    {"Not", same, "logical_not"},
    {"Where", same, "where"},
    {"Clip", clip, "clip"},
    {"Neg", same, "neg"},
    {"Abs", same, "abs"},
    {"Sqrt", same, "sqrt"},
    {"Reciprocal", same, "reciprocal"},
    {"Log", same, "log"},
    {"Exp", same, "exp"},
    {"Erf", same, "erf"},
    {"Floor", same, "floor"},
    {"Ceil", same, "ceil"},
    {"Round", same, "round"},
    {"Sign", same, "sign"},
    {"Sin", same, "sin"},
    {"Cos", same, "cos"},
    {"IsNaN", same, "is_nan"},
    {"IsInf", is_inf, "is_inf"},
    {"Sigmoid", same, "sigmoid"},
    {"Tanh", same, "tanh"},
    {"Relu", same, "relu"},
    {"LeakyRelu", activation, "leaky_relu"},
    {"Elu", activation, "elu"},
    {"Selu", activation, "selu"},
    {"Celu", activation, "celu"},
    {"Gelu", gelu, "gelu"},
    {"HardSigmoid", activation, "hard_sigmoid"},
    {"HardSwish", same, "hard_swish"},
    {"Mish", same, "mish"},
    {"Softplus", same, "softplus"},
    {"Softsign", same, "softsign"},
    {"ThresholdedRelu", activation, "thresholded_relu"},
    {"PRelu", prelu, "prelu"},
    {"Shrink", shrink},
    {"Swish", swish},
    {"Cast", cast, "cast"},
    {"CastLike", cast_like},
    {"Identity", same, "identity"},
    {"Dropout", dropout},
};

}  // namespace

std::span<const Rule> elementwise_rules() { return rules; }

}  // namespace millrace::importing
