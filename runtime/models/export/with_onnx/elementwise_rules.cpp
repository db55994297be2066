// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>

#include <millrace/runtime/models/export/with_onnx/activation.h>
#include <millrace/runtime/models/export/with_onnx/rules.h>
#include <millrace/runtime/program/ops/internal/unary_names.h>

namespace millrace::exporting {

std::string activation(Exporter& to, DType dtype, Unary kind, const UnaryParams& params, const std::string& x) {
  struct Named {
    Unary kind;
    const char* onnx;
    const char* alpha = nullptr;
    const char* beta = nullptr;
  };
  static constexpr Named named[] = {
      {Unary::sigmoid, "Sigmoid"},
      {Unary::tanh, "Tanh"},
      {Unary::relu, "Relu"},
      {Unary::leaky_relu, "LeakyRelu", "alpha"},
      {Unary::elu, "Elu", "alpha"},
      {Unary::selu, "Selu", "alpha", "gamma"},
      {Unary::celu, "Celu", "alpha"},
      {Unary::hard_sigmoid, "HardSigmoid", "alpha", "beta"},
      {Unary::hard_swish, "HardSwish"},
      {Unary::mish, "Mish"},
      {Unary::softplus, "Softplus"},
      {Unary::softsign, "Softsign"},
      {Unary::thresholded_relu, "ThresholdedRelu", "alpha"},
  };
  for (const Named& each : named) {
    if (each.kind != kind) continue;
    Settings settings;
    if (each.alpha != nullptr) settings.emplace_back(each.alpha, params.alpha);
    if (each.beta != nullptr) settings.emplace_back(each.beta, params.beta);
    return to.node(each.onnx, {x}, settings);
  }
  if (kind == Unary::affine) return to.node("Add", {to.node("Mul", {x, to.number(dtype, params.alpha)}), to.number(dtype, params.beta)});
  if (kind == Unary::scaled_tanh)
    return to.node("Mul", {to.node("Tanh", {to.node("Mul", {x, to.number(dtype, params.beta)})}), to.number(dtype, params.alpha)});
  throw UnsupportedError("activation '" + std::string(name_of(kind)) + "' has no counterpart");
}

namespace {

void same(Exporter& to, const Op& op, const char* onnx) { to.give(op, onnx, to.all_in(op)); }

void activate(Exporter& to, const Op& op, const char*) {
  const ops::UnaryName* named = ops::find_activation(op.type);
  to.bind(op.outputs[0], activation(to, to.type(op, 0).dtype, named->kind, ops::params_of(*named, op.attributes), to.in(op, 0)));
}

void gelu(Exporter& to, const Op& op, const char*) {
  const std::string x = to.in(op, 0);
  const DType dtype = to.type(op, 0).dtype;
  const auto number = [&](double value) { return to.number(dtype, value); };
  const auto times = [&](const std::string& a, const std::string& b) { return to.node("Mul", {a, b}); };
  std::string inner;
  if (op.attributes.get_or("approximate", std::string("none")) == "tanh") {
    const std::string cubed = times(times(times(x, x), x), number(0.044715));
    inner = to.node("Tanh", {times(to.node("Add", {x, cubed}), number(std::sqrt(2 / std::numbers::pi)))});
  } else {
    inner = to.node("Erf", {times(x, number(1 / std::numbers::sqrt2))});
  }
  to.bind(op.outputs[0], times(times(x, number(0.5)), to.node("Add", {inner, number(1)})));
}

/// The gradient of `onnx`, a function whose gradient follows from its result, as the products and differences that it is.
void gradient_of(Exporter& to, const Op& op, const char* onnx) {
  const std::string gradient = to.in(op, 0), y = to.in(op, 1), one = to.number(to.type(op, 0).dtype, 1);
  const bool sigmoid = std::string_view(onnx) == "Sigmoid";
  const std::string slope = sigmoid ? to.node("Mul", {y, to.node("Sub", {one, y})}) : to.node("Sub", {one, to.node("Mul", {y, y})});
  to.give(op, "Mul", {gradient, slope});
}

/// ONNX has no remainder of floats with the sign of the divisor: C's, plus the divisor where the signs differ.
void mod(Exporter& to, const Op& op, const char* onnx) {
  const bool as_c = op.attributes.get_or("fmod", false);
  const DType dtype = to.type(op, 0).dtype;
  if (as_c || !is_floating(dtype)) return to.give(op, onnx, to.all_in(op), {{"fmod", std::int64_t{as_c ? 1 : 0}}});
  const std::string zero = to.number(dtype, 0);
  const std::string left = to.node(onnx, to.all_in(op), {{"fmod", std::int64_t{1}}});
  const std::string differ = to.node("Xor", {to.node("Less", {left, zero}), to.node("Less", {to.in(op, 1), zero})});
  const std::string some = to.node("Not", {to.node("Equal", {left, zero})});
  to.give(op, "Where", {to.node("And", {differ, some}), to.node("Add", {left, to.in(op, 1)}), left});
}

void not_equal(Exporter& to, const Op& op, const char*) { to.give(op, "Not", {to.node("Equal", to.all_in(op))}); }

void clip(Exporter& to, const Op& op, const char* onnx) {
  const auto bound = [&](std::size_t input) { return Exporter::has(op, input) ? to.scalar(op.inputs[input]) : std::string(); };
  to.give(op, onnx, {to.in(op, 0), bound(1), bound(2)});
}

/// ONNX Runtime's Where has no bool: (condition and a) or (not condition and b).
void where(Exporter& to, const Op& op, const char* onnx) {
  if (to.type(op, 1).dtype != DType::boolean) return same(to, op, onnx);
  const std::string condition = to.in(op, 0);
  const std::string chosen = to.node("And", {condition, to.in(op, 1)});
  to.give(op, "Or", {chosen, to.node("And", {to.node("Not", {condition}), to.in(op, 2)})});
}

void cast(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, to.all_in(op), {{"to", std::int64_t{onnx_type(op.attributes.get<DType>("to"))}}});
}

void bit_cast(Exporter& to, const Op& op, const char* onnx) {
  to.need_opset(26);
  cast(to, op, onnx);
}

/// An array or an order is the same one under another name.
void identity(Exporter& to, const Op& op, const char* onnx) {
  if (Exporter::is_value(to.type(op, 0))) same(to, op, onnx);
}

/// Without training it gives its input.
void dropout(Exporter& to, const Op& op, const char* onnx) {
  if (op.attributes.get_or("training", true))
    throw UnsupportedError("draws numbers, which no op of ONNX draws by a key: expected training = false, found true");
  to.give(op, onnx, {to.in(op, 0)});
}

constexpr Rule elementwise_table[] = {
    {"add", same, "Add"},
    {"sub", same, "Sub"},
    {"mul", same, "Mul"},
    {"div", same, "Div"},
    {"pow", same, "Pow"},
    {"minimum", same, "Min"},
    {"maximum", same, "Max"},
    {"mod", mod, "Mod"},
    {"equal", same, "Equal"},
    {"not_equal", not_equal},
    {"less", same, "Less"},
    {"less_equal", same, "LessOrEqual"},
    {"greater", same, "Greater"},
    {"greater_equal", same, "GreaterOrEqual"},
    {"logical_and", same, "And"},
    {"logical_or", same, "Or"},
    {"logical_xor", same, "Xor"},
    {"logical_not", same, "Not"},
    {"where", where, "Where"},
    {"clip", clip, "Clip"},
    {"neg", same, "Neg"},
    {"abs", same, "Abs"},
    {"sqrt", same, "Sqrt"},
    {"reciprocal", same, "Reciprocal"},
    {"log", same, "Log"},
    {"exp", same, "Exp"},
    {"erf", same, "Erf"},
    {"floor", same, "Floor"},
    {"ceil", same, "Ceil"},
    {"round", same, "Round"},
    {"sign", same, "Sign"},
    {"sin", same, "Sin"},
    {"cos", same, "Cos"},
    {"atan", same, "Atan"},
    {"is_nan", same, "IsNaN"},
    {"is_inf", same, "IsInf"},
    {"sigmoid", activate},
    {"tanh", activate},
    {"relu", activate},
    {"leaky_relu", activate},
    {"elu", activate},
    {"selu", activate},
    {"celu", activate},
    {"hard_sigmoid", activate},
    {"hard_swish", activate},
    {"mish", activate},
    {"softplus", activate},
    {"softsign", activate},
    {"thresholded_relu", activate},
    {"affine", activate},
    {"scaled_tanh", activate},
    {"gelu", gelu},
    {"prelu", same, "PRelu"},
    {"sigmoid_gradient", gradient_of, "Sigmoid"},
    {"tanh_gradient", gradient_of, "Tanh"},
    {"cast", cast, "Cast"},
    {"bit_cast", bit_cast, "BitCast"},
    {"identity", identity, "Identity"},
    {"stop_gradient", same, "Identity"},
    {"dropout", dropout, "Identity"},
};

}  // namespace

std::span<const Rule> elementwise_rules() { return elementwise_table; }

}  // namespace millrace::exporting
