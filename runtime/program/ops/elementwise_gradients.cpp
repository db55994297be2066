// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <functional>
#include <numbers>

#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/gradients.h>
#include <millrace/runtime/program/ops/internal/unary_names.h>

/// Gradients of ops on elements. Where a function has a corner it has the gradient of PyTorch's function of that name: 0 of relu and abs at 0,
/// an equal share for each of two equal operands of minimum and maximum, the gradient of the inside for clip at a bound.
namespace millrace::ops {
namespace {

// ---- Two operands ----

void add_rule(GradientContext& c) {
  const Term g = gradient(c);
  for (const std::size_t input : {0, 1}) set_summed(c, input, g);
}

void sub_rule(GradientContext& c) {
  const Term g = gradient(c);
  set_summed(c, 0, g);
  if (c.wants(1)) set_summed(c, 1, -g);
}

void mul_rule(GradientContext& c) {
  const Term g = gradient(c);
  for (const std::size_t input : {0, 1})
    if (c.wants(input)) set_summed(c, input, g * value(c, 1 - input));
}

void div_rule(GradientContext& c) {
  const Term by_a = gradient(c) / value(c, 1);
  set_summed(c, 0, by_a);
  if (c.wants(1)) set_summed(c, 1, -(by_a * result(c)));
}

void pow_rule(GradientContext& c) {
  const Term g = gradient(c);
  const Term a = value(c, 0);
  const Tensor* exponent = c.program().constant(c.op().inputs[1]);
  if (c.wants(0)) {
    if (exponent != nullptr && exponent->elements() == 1 && exponent->item() == 2) {
      set_summed(c, 0, g * (a * 2.0));
    } else {
      const Term b = value(c, 1);
      // A power of 0 is constant, also at 0, where a^(b − 1) is infinite.
      set_summed(c, 0, g * where(compare("equal", b, 0), number(c, 0, b.dtype()), b * call("pow", {a, b + -1.0})));
    }
  }
  if (!c.wants(1)) return;
  // A power of 0 is constant around an exponent above 0, where log 0 is infinite. The logarithm of a negative base is NaN, as PyTorch's.
  const Term constant = call("logical_and", {compare("equal", a, 0), compare("greater_equal", value(c, 1), 0)});
  set_summed(c, 1, g * (result(c) * call("log", {where(constant, number(c, 1, a.dtype()), a)})));
}

/// `wins`: the comparison of this operand with the other one that makes it the result.
void extreme_rule(GradientContext& c, const std::string& wins) {
  const Term g = gradient(c);
  const Term a = value(c, 0), b = value(c, 1);
  const Term shared = masked(call("equal", {a, b}), g * 0.5);
  if (c.wants(0)) set_summed(c, 0, where(call(wins, {a, b}), g, shared));
  if (c.wants(1)) set_summed(c, 1, where(call(wins, {b, a}), g, shared));
}

/// Both remainders are A − n·B with a whole number n.
void mod_rule(GradientContext& c) {
  const Term g = gradient(c);
  set_summed(c, 0, g);
  if (c.wants(1)) set_summed(c, 1, -(g * call("round", {(value(c, 0) - result(c)) / value(c, 1)})));
}

void where_rule(GradientContext& c) {
  const Term g = gradient(c), condition = value(c, 0), zero = number(c, 0, g.dtype());
  if (c.wants(1)) set_summed(c, 1, where(condition, g, zero));
  if (c.wants(2)) set_summed(c, 2, where(condition, zero, g));
}

void clip_rule(GradientContext& c) {
  Term g = gradient(c);
  const Term x = value(c, 0);
  Term low;
  Term raised = x;
  if (c.has(1)) {
    low = reshaped_to(value(c, 1), {});
    raised = call("maximum", {x, low});
  }
  if (c.has(2)) {
    const Term high = reshaped_to(value(c, 2), {});
    const Term above = call("greater", {raised, high});
    if (c.wants(2)) set_total(c, 2, masked(above, g));
    g = where(above, number(c, 0, g.dtype()), g);
  }
  if (!low.defined()) return set(c, 0, g);
  const Term below = call("less", {x, low});
  if (c.wants(1)) set_total(c, 1, masked(below, g));
  if (c.wants(0)) set(c, 0, where(below, number(c, 0, g.dtype()), g));
}

void prelu_rule(GradientContext& c) {
  const Term g = gradient(c), x = value(c, 0);
  if (c.wants(0)) set_summed(c, 0, where(compare("greater", x, 0), g, g * value(c, 1)));
  if (c.wants(1)) set_summed(c, 1, masked(compare("less", x, 0), g * x));
}

void sigmoid_gradient_rule(GradientContext& c) {
  const Term g = gradient(c), y = value(c, 1);
  if (c.wants(0)) set_summed(c, 0, call("sigmoid_gradient", {g, y}));
  if (c.wants(1)) set_summed(c, 1, g * value(c, 0) * (1.0 - y * 2.0));
}

void tanh_gradient_rule(GradientContext& c) {
  const Term g = gradient(c), y = value(c, 1);
  if (c.wants(0)) set_summed(c, 0, call("tanh_gradient", {g, y}));
  if (c.wants(1)) set_summed(c, 1, g * value(c, 0) * (y * -2.0));
}

// ---- One operand ----

/// Gives the gradient of X from the gradient g of the result and the two numbers of the function.
using Derivative = std::function<Term(GradientContext&, const Term& g, const UnaryParams&)>;

GradientRule unary_rule(const std::string& name, Derivative derivative) {
  return [name, derivative = std::move(derivative)](GradientContext& c) {
    const UnaryName* named = find_unary(name);
    set(c, 0, derivative(c, gradient(c), named == nullptr ? UnaryParams{} : params_of(*named, c.op().attributes)));
  };
}

Term square(const Term& x) { return x * x; }
/// 1 − y².
Term tanh_slope(const Term& y) { return 1.0 - square(y); }

Term mish_rule(GradientContext& c, const Term& g, const UnaryParams&) {
  const Term x = value(c, 0);
  const Term t = call("tanh", {call("softplus", {x})});
  return g * (t + x * call("sigmoid", {x}) * tanh_slope(t));
}

Term gelu_rule(GradientContext& c, const Term& g, const UnaryParams&) {
  const Term x = value(c, 0);
  if (c.op().attributes.get_or("approximate", std::string("none")) == "tanh") {
    const double root = std::sqrt(2 / std::numbers::pi), cubic = 0.044715;
    const Term t = call("tanh", {(x + x * x * x * cubic) * root});
    return g * ((t + 1.0) * 0.5 + x * 0.5 * tanh_slope(t) * ((square(x) * (3 * cubic) + 1.0) * root));
  }
  const Term below = (call("erf", {x * (1 / std::numbers::sqrt2)}) + 1.0) * 0.5;
  const Term density = call("exp", {square(x) * -0.5}) * (1 / std::sqrt(2 * std::numbers::pi));
  return g * (below + x * density);
}

Term hard_swish_rule(GradientContext& c, const Term& g, const UnaryParams&) {
  const Term x = value(c, 0);
  const Term inside = g * (x * (1.0 / 3) + 0.5);
  return where(compare("greater_equal", x, 3), g, masked(compare("greater", x, -3), inside));
}

/// The gradient where the condition holds, else another one.
Term above_zero(GradientContext& c, const Term& yes, const Term& no) { return where(compare("greater", value(c, 0), 0), yes, no); }

/// exp(X · scale) where X is below 0. A difference of the result would cancel there; elsewhere it is 1, so that no derivative overflows.
Term exp_below_zero(GradientContext& c, double scale) {
  const Term x = value(c, 0);
  const Term below = where(compare("greater", x, 0), number(c, 0, x.dtype()), x);
  return call("exp", {scale == 1 ? below : below * scale});
}

void add_unary_rules(OpRegistry& registry) {
  const auto rule = [&](const char* name, Derivative derivative) { registry.set_gradient(name, unary_rule(name, std::move(derivative))); };
  using P = const UnaryParams&;
  using C = GradientContext&;
  using G = const Term&;
  rule("neg", [](C, G g, P) { return -g; });
  rule("abs", [](C c, G g, P) { return g * call("sign", {value(c, 0)}); });
  rule("sqrt", [](C c, G g, P) { return g * 0.5 / result(c); });
  rule("reciprocal", [](C c, G g, P) { return -(g * square(result(c))); });
  rule("log", [](C c, G g, P) { return g / value(c, 0); });
  rule("exp", [](C c, G g, P) { return g * result(c); });
  rule("erf", [](C c, G g, P) { return g * (call("exp", {-square(value(c, 0))}) * (2 / std::sqrt(std::numbers::pi))); });
  rule("sin", [](C c, G g, P) { return g * call("cos", {value(c, 0)}); });
  rule("cos", [](C c, G g, P) { return -(g * call("sin", {value(c, 0)})); });
  rule("atan", [](C c, G g, P) { return g / (square(value(c, 0)) + 1.0); });
  rule("sigmoid", [](C c, G g, P) { return call("sigmoid_gradient", {g, result(c)}); });
  rule("tanh", [](C c, G g, P) { return call("tanh_gradient", {g, result(c)}); });
  rule("relu", [](C c, G g, P) { return masked(compare("greater", result(c), 0), g); });
  rule("leaky_relu", [](C c, G g, P p) { return where(compare("greater", value(c, 0), 0), g, g * p.alpha); });
  rule("elu", [](C c, G g, P p) { return above_zero(c, g, g * (exp_below_zero(c, 1) * p.alpha)); });
  rule("selu", [](C c, G g, P p) { return above_zero(c, g * p.beta, g * (exp_below_zero(c, 1) * (p.alpha * p.beta))); });
  rule("celu", [](C c, G g, P p) { return above_zero(c, g, g * exp_below_zero(c, 1 / p.alpha)); });
  rule("hard_sigmoid", [](C c, G g, P p) {
    const Term y = result(c);
    return masked(call("logical_and", {compare("greater", y, 0), compare("less", y, 1)}), g * p.alpha);
  });
  rule("hard_swish", hard_swish_rule);
  rule("mish", mish_rule);
  rule("softplus", [](C c, G g, P) { return g * call("sigmoid", {value(c, 0)}); });
  rule("softsign", [](C c, G g, P) { return g / square(call("abs", {value(c, 0)}) + 1.0); });
  rule("thresholded_relu", [](C c, G g, P p) { return masked(compare("greater", value(c, 0), p.alpha), g); });
  rule("affine", [](C, G g, P p) { return g * p.alpha; });
  rule("scaled_tanh", [](C c, G g, P p) { return g * (tanh_slope(call("tanh", {value(c, 0) * p.beta})) * (p.alpha * p.beta)); });
  rule("gelu", gelu_rule);
}

}  // namespace

void add_elementwise_gradients(OpRegistry& registry) {
  registry.set_gradient("add", add_rule);
  registry.set_gradient("sub", sub_rule);
  registry.set_gradient("mul", mul_rule);
  registry.set_gradient("div", div_rule);
  registry.set_gradient("pow", pow_rule);
  registry.set_gradient("minimum", [](GradientContext& c) { extreme_rule(c, "less"); });
  registry.set_gradient("maximum", [](GradientContext& c) { extreme_rule(c, "greater"); });
  registry.set_gradient("mod", mod_rule);
  registry.set_gradient("where", where_rule);
  registry.set_gradient("clip", clip_rule);
  registry.set_gradient("prelu", prelu_rule);
  registry.set_gradient("sigmoid_gradient", sigmoid_gradient_rule);
  registry.set_gradient("tanh_gradient", tanh_gradient_rule);
  add_unary_rules(registry);
  registry.cut_gradients({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or",
                          "logical_xor", "logical_not", "floor", "ceil", "round", "sign", "is_nan", "is_inf"});
}

}  // namespace millrace::ops
