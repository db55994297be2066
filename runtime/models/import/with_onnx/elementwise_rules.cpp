// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <millrace/runtime/models/import/with_onnx/element_types.h>
#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>
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
  if (is_floating(to.type(x).dtype)) return to.give(node, op, {x, slope});
  const Formula f(to, to.type(x).dtype);
  to.give(node, "where", {f.op("less", x, 0.0), f.times(x, slope), x});
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

/// Ops of ONNX Runtime's optimiser: gelu of the sum of X and a bias, or of X alone.
void bias_gelu(Importer& to, const Node& node, const char* approximate) {
  const VarId x = node.has(1) ? to.emit1("add", {to.in(node, 0), to.in(node, 1)}) : to.in(node, 0);
  to.give(node, "gelu", {x}, {{"approximate", std::string(approximate)}});
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

/// Bounds were attributes up to opset 10, whose defaults are the ends of f32: infinity is cut to them.
void clip(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0);
  if (to.opset() >= 11) return to.give(node, op, {x, to.in_or_none(node, 1), to.in_or_none(node, 2)});
  constexpr double most = std::numeric_limits<float>::max();
  const auto bound = [&](const char* name, double otherwise) {
    return to.literal(scalar_of(to.type(x).dtype, node.real(name, otherwise)));
  };
  const VarId low = bound("min", -most);
  const VarId high = bound("max", most);
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

/// swish(a) · b
void swiglu(Importer& to, const Node& node, const char*) {
  const VarId a = to.in(node, 0);
  const VarId scaled = to.emit1("mul", {a, to.literal(scalar_of(to.type(a).dtype, node.real("alpha", 1)))});
  to.give(node, "mul", {to.emit1("mul", {a, to.emit1("sigmoid", {scaled})}), to.in(node, 1)});
}

/// Numbers of `type` from x; what lies beyond the range of floats becomes the greatest, or what the type has beyond.
void cast_to_element(Importer& to, const Node& node, const ElementType& type) {
  const VarId x = to.in(node, 0);
  const bool saturate = node.flag("saturate", true);
  if (type.is_float() && to.type(x).dtype == DType::f64)
    throw UnsupportedError("expected floats of at most 32 bits to narrow to " + std::string(type.name) +
                           ", found f64, which would round twice");
  // The numbers of small integers are found in more bits.
  const DType wide = type.is_float() ? type.held : DType::i64;
  VarId made = to.type(x).dtype == wide ? x : to.emit1("cast", {x}, {{"to", wide}});
  const ElementType* from = to.element(x);
  if (from != &type) {
    ElementType wider = type;
    wider.held = wide;
    made = narrowed(to, made, wider, {saturate});
  }
  made = to.emit1("cast", {made}, {{"to", type.held}});
  // A negative number is beyond the range of uint64 once its sign is a bit.
  const bool beyond = type.onnx == onnx::TensorProto::UINT64 && is_integer(to.type(x).dtype) && (from == nullptr || from->is_signed);
  to.set_element(made, beyond && to.type(x).dtype != DType::u8 ? held_type(wrapped_uint64) : &type);
  to.bind(node, 0, made);
}

void cast_to(Importer& to, const Node& node, const char* op, const ElementType* type, DType dtype) {
  if (type != nullptr) return cast_to_element(to, node, *type);
  node.pass_over("saturate");  // of numbers of 8 bits alone
  to.give(node, op, {to.in(node, 0)}, {{"to", dtype}});
}

void cast(Importer& to, const Node& node, const char* op) {
  const auto wanted = checked_cast<int>(node.integer("to", 0));
  cast_to(to, node, op, held_type(wanted), held_dtype(wanted, "attribute to"));
}

void cast_like(Importer& to, const Node& node, const char*) {
  const VarId like = to.in(node, 1);
  cast_to(to, node, "cast", to.element(like), to.type(like).dtype);
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

constexpr Rule elementwise_table[] = {
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
    {"SwiGLU", swiglu},
    {"Sigmoid", same, "sigmoid"},
    {"Tanh", same, "tanh"},
    {"Relu", same, "relu"},
    {"LeakyRelu", activation, "leaky_relu"},
    {"Elu", activation, "elu"},
    {"Selu", activation, "selu"},
    {"Celu", activation, "celu"},
    {"Gelu", gelu, "gelu"},
    {"com.microsoft.Gelu", bias_gelu, "none"},
    {"com.microsoft.BiasGelu", bias_gelu, "none"},
    {"com.microsoft.FastGelu", bias_gelu, "tanh"},
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

std::span<const Rule> elementwise_rules() { return elementwise_table; }

}  // namespace millrace::importing
