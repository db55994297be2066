// SPDX-License-Identifier: Apache-2.0
#include <numbers>

#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>

/// Hyperbolic functions and inverses, written out in f64 and narrowed at the end, so that differences near zero cost f32 nothing.
namespace millrace::importing {
namespace {

/// A node's result, computed in f64.
template <class F>
void in_f64(Importer& to, const Node& node, F&& curve) {
  const VarId x = to.in(node, 0);
  const DType dtype = to.type(x).dtype;
  if (!is_floating(dtype)) throw ProgramError("expected floats, found " + to.type(x).to_string());
  const Formula f(to, DType::f64);
  to.give(node, "cast", {curve(f, f.taken(x))}, {{"to", dtype}});
}

/// (eˣ + sign·e⁻ˣ) / 2
VarId half_sum(const Formula& f, VarId x, const char* sign) {
  return f.times(f.op(sign, f.op("exp", x), f.op("exp", f.op("neg", x))), 0.5);
}

/// An approximation y within 0.005 and what is left of the angle, d = tan(atan x − y), by its series: d⁷ / 7 is below f64's last bit. Not the op, which
/// ONNX Runtime lacks in f64 where the program is exported.
VarId arctangent(const Formula& f, VarId x) {
  const VarId all = f.limited(x, -1e17, 1e17);
  const VarId square = f.times(all, all);
  const VarId near = f.over(all, f.plus(f.times(square, 0.28), 1.0));
  const VarId right = f.times(f.op("sign", all), std::numbers::pi / 2);
  const VarId far = f.minus(right, f.over(all, f.plus(square, 0.28)));
  const VarId y = f.where(f.op("less", square, 1.0), near, far);
  const VarId sine = f.op("sin", y), cosine = f.op("cos", y);
  const VarId d = f.over(f.minus(f.times(all, cosine), sine), f.plus(cosine, f.times(all, sine)));
  const VarId d2 = f.times(d, d);
  const VarId series = f.plus(f.times(d2, f.plus(f.times(d2, 0.2), -1.0 / 3)), 1.0);
  return f.plus(y, f.times(d, series));
}

/// atan(x / √((1 − x)(1 + x))); NaN outside −1 … 1, as the root is.
VarId arcsine(const Formula& f, VarId x) {
  const VarId root = f.op("sqrt", f.times(f.minus(f.number(1), x), f.plus(x, 1.0)));
  return arctangent(f, f.over(x, root));
}

void sinh(Importer& to, const Node& node, const char*) {
  in_f64(to, node, [](const Formula& f, VarId x) { return half_sum(f, x, "sub"); });
}
void cosh(Importer& to, const Node& node, const char*) {
  in_f64(to, node, [](const Formula& f, VarId x) { return half_sum(f, x, "add"); });
}
void tan(Importer& to, const Node& node, const char*) {
  in_f64(to, node, [](const Formula& f, VarId x) { return f.over(f.op("sin", x), f.op("cos", x)); });
}
/// Only f32 becomes the op: ONNX Runtime has no other Atan, and the program may be exported again.
void atan(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const DType dtype = to.type(x).dtype;
  if (dtype == DType::f32) return to.give(node, "atan", {x});
  if (dtype == DType::f64 || !is_floating(dtype)) return in_f64(to, node, arctangent);
  const Formula f(to, DType::f32);
  to.give(node, "cast", {f.op("atan", f.taken(x))}, {{"to", dtype}});
}
void asin(Importer& to, const Node& node, const char*) { in_f64(to, node, arcsine); }
void acos(Importer& to, const Node& node, const char*) {
  in_f64(to, node, [](const Formula& f, VarId x) { return f.minus(f.number(std::numbers::pi / 2), arcsine(f, x)); });
}
/// sign(x) · log(|x| + √(x² + 1))
void asinh(Importer& to, const Node& node, const char*) {
  in_f64(to, node, [](const Formula& f, VarId x) {
    const VarId root = f.op("sqrt", f.plus(f.times(x, x), 1.0));
    return f.times(f.op("sign", x), f.op("log", f.plus(f.op("abs", x), root)));
  });
}
/// log(x + √((x − 1)(x + 1)))
void acosh(Importer& to, const Node& node, const char*) {
  in_f64(to, node,
         [](const Formula& f, VarId x) { return f.op("log", f.plus(x, f.op("sqrt", f.times(f.minus(x, 1.0), f.plus(x, 1.0))))); });
}
/// log((1 + x) / (1 − x)) / 2
void atanh(Importer& to, const Node& node, const char*) {
  in_f64(to, node, [](const Formula& f, VarId x) { return f.times(f.op("log", f.over(f.plus(x, 1.0), f.minus(f.number(1), x))), 0.5); });
}

constexpr Rule curve_table[] = {
    {"Sinh", sinh}, {"Cosh", cosh},   {"Tan", tan},     {"Asin", asin},   {"Acos", acos},
    {"Atan", atan}, {"Asinh", asinh}, {"Acosh", acosh}, {"Atanh", atanh},
};

}  // namespace

std::span<const Rule> curve_rules() { return curve_table; }

}  // namespace millrace::importing
