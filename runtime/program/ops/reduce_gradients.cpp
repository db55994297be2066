// SPDX-License-Identifier: Apache-2.0

#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/gradients.h>

/// Gradients of folds and norms. Equal extremes share the gradient equally, as PyTorch's amax and amin do. Sums of f16 and bf16 are f32.
namespace millrace::ops {
namespace {

// ---- reduce ----

/// A reduction that is gone back through: its axes stay as 1 in `y` and `g`.
struct Folded {
  Folded(GradientContext& context, bool with_result)
      : c(context), dtype(summing(c.input_type(0).dtype)), axes(c.op().attributes.get_or("axes", Ints{})) {
    const int rank = c.input_type(0).rank();
    if (axes.empty())
      for (int axis = 0; axis < rank; ++axis) axes.push_back(axis);
    keeps = c.op().attributes.get_or("keepdims", true);
    g = kept(cast_to(gradient(c), dtype));
    if (with_result) y = kept(cast_to(result(c), dtype));
  }
  Term kept(const Term& folded) const { return keeps ? folded : unsqueezed(folded, axes); }
  Term x() const { return cast_to(value(c, 0), dtype); }
  /// The number of elements that are folded into one.
  Term divided(const Term& of) const {
    const std::optional<DDim>& shape = c.input_type(0).shape;
    std::int64_t count = shape ? 1 : DDim::unknown;
    if (shape)
      for (const int axis : checked_axes(axes, shape->rank()))
        count = count < 0 || (*shape)[axis] < 0 ? DDim::unknown : count * (*shape)[axis];
    if (count != DDim::unknown) return count == 0 ? of : of * (1.0 / static_cast<double>(count));
    const Term extents = axes.empty() ? shape_of(value(c, 0)) : call("gather", {shape_of(value(c, 0)), list(c, axes)});
    return of / cast_to(reduced("prod", extents, {}, false), dtype);
  }
  Term spread(const Term& folded) const {
    return axes.empty() ? call("expand", {folded, shape_of(value(c, 0))}) : stretched(folded, value(c, 0), axes);
  }
  void give(const Term& made) const { set(c, 0, cast_to(made, c.input_type(0).dtype)); }

  GradientContext& c;
  DType dtype;
  Ints axes;
  bool keeps = true;
  Term g, y;
};

void spread_rule(GradientContext& c, bool mean) {
  const Folded f(c, false);
  f.give(f.spread(mean ? f.divided(f.g) : f.g));
}

void extreme_rule(GradientContext& c) {
  const Folded f(c, true);
  const Term equal = call("equal", {f.x(), f.y});
  const Term count = reduced("sum", cast_to(equal, f.dtype), f.axes, true);
  f.give(masked(equal, f.g / count));
}

/// The product of the others: that of all elements other than 0, over the element, where no other one is 0.
void product_rule(GradientContext& c) {
  const Folded f(c, false);
  const Term x = f.x();
  const Term zero = compare("equal", x, 0);
  const Term divisor = where(zero, number(c, 1, f.dtype), x);
  const Term product = reduced("prod", divisor, f.axes, true);
  const Term zeros = reduced("sum", cast_to(zero, f.dtype), f.axes, true);
  const Term others = zeros - cast_to(zero, f.dtype);
  f.give(masked(compare("equal", others, 0), f.g * (product / divisor)));
}

void l2_rule(GradientContext& c) {
  const Folded f(c, true);
  const Term none = compare("equal", f.y, 0);
  f.give(f.x() * masked(compare("greater", f.y, 0), f.g / where(none, number(c, 1, f.dtype), f.y)));
}

/// Where all elements are −∞ the result is, too, and the gradient 0; beside an infinite element finite ones have the gradient 0.
void log_sum_exp_rule(GradientContext& c) {
  const Folded f(c, true);
  const Term above = call("logical_or", {call("logical_not", {call("is_inf", {f.y})}), compare("greater", f.y, 0)});
  f.give(f.g * call("exp", {f.x() - masked(above, f.y)}));
}

void reduce_rule(GradientContext& c) {
  const std::string kind = c.op().attributes.get<std::string>("kind");
  if (kind == "sum" || kind == "mean") return spread_rule(c, kind == "mean");
  if (kind == "max" || kind == "min") return extreme_rule(c);
  if (kind == "prod") return product_rule(c);
  if (kind == "l2") return l2_rule(c);
  if (kind == "log_sum_exp") return log_sum_exp_rule(c);
  const Folded f(c, false);
  const Term x = f.x();
  if (kind == "l1") return f.give(f.g * call("sign", {x}));
  if (kind == "sum_square") return f.give(f.g * (x * 2.0));
  f.give(f.spread(f.g / reduced("sum", x, f.axes, true)));  // log_sum
}

// ---- Norms ----

Ints axis_of(const GradientContext& c) { return {c.op().attributes.get_or("axis", std::int64_t{-1})}; }

void softmax_rule(GradientContext& c) {
  const DType dtype = summing(c.input_type(0).dtype);
  const Term g = cast_to(gradient(c), dtype), y = cast_to(result(c), dtype);
  set(c, 0, cast_to(y * (g - reduced("sum", g * y, axis_of(c), true)), c.input_type(0).dtype));
}

void log_softmax_rule(GradientContext& c) {
  const DType dtype = summing(c.input_type(0).dtype);
  const Term g = cast_to(gradient(c), dtype), y = cast_to(result(c), dtype);
  set(c, 0, cast_to(g - call("exp", {y}) * reduced("sum", g, axis_of(c), true), c.input_type(0).dtype));
}

Ints normed_axes(const GradientContext& c, int rank) {
  Ints axes;
  for (int axis = checked_axis(axis_of(c)[0], rank); axis < rank; ++axis) axes.push_back(axis);
  return axes;
}

void layer_norm_rule(GradientContext& c) {
  const int rank = c.input_type(0).rank();
  if (rank < 0) throw UnsupportedError("op layer_norm: the gradient of an input of unknown rank");
  const DType given = c.input_type(0).dtype, dtype = summing(given);
  const Term g = cast_to(gradient(c), dtype);
  if (c.has(2)) set_summed(c, 2, cast_to(g, given));
  if (!c.wants(0) && !c.wants(1)) return;
  const std::vector<Term> made =
      call_all("layer_norm_gradient", {cast_to(value(c, 0), dtype), cast_to(value(c, 1), dtype), g}, Attributes(c.op().attributes));
  if (c.wants(1)) set_summed(c, 1, cast_to(made[1], given));
  if (c.wants(0)) set(c, 0, cast_to(made[0], given));
}

/// With f = 1 / √(variance + epsilon), x̂ = (x − mean)·f and J(u) = f·(u − mean(u) − x̂·mean(u·x̂)), which is its own transpose, the op gives J(s) of
/// s = g·scale, and g·x̂. J(v) is also what x̂ changes by along v, and f changes by −f·x̂·f·v / n. So, for gradients u of J(s) and r of g·x̂,
///   s: J(u);  g: J(u)·scale + r·x̂;  scale: Σ J(u)·g;  x: J(r·g) − f·(x̂·mean(u·J(s)) + mean(s·x̂)·J(u) + mean(u·x̂)·J(s)).
void layer_norm_gradient_rule(GradientContext& c) {
  const int rank = c.input_type(0).rank();
  if (rank < 0) throw UnsupportedError("op layer_norm_gradient: the gradient of an input of unknown rank");
  const Ints axes = normed_axes(c, rank);
  const auto mean = [&axes](const Term& of) { return reduced("mean", of, axes, true); };
  const Term x = value(c, 0), scale = value(c, 1), g = value(c, 2);
  const Term distance = x - mean(x);
  const Term f = 1.0 / call("sqrt", {mean(distance * distance) + c.op().attributes.get_or("epsilon", 1e-5)});
  const Term normal = distance * f;
  const auto j = [&](const Term& of) { return f * (of - mean(of) - normal * mean(of * normal)); };
  const Term u = gradient(c, 0), r = gradient(c, 1);
  Term by_x, by_g;
  const auto add = [](Term& to, const Term& term) { to = to.defined() ? to + term : term; };
  if (u.defined()) {
    const Term s = g * scale, ju = j(u);
    add(by_g, ju * scale);
    if (c.wants(1)) set_summed(c, 1, ju * g);
    if (c.wants(0)) add(by_x, -(f * (normal * mean(u * j(s)) + mean(s * normal) * ju + mean(u * normal) * j(s))));
  }
  if (r.defined()) {
    add(by_g, r * normal);
    if (c.wants(0)) add(by_x, j(r * g));
  }
  if (c.wants(2)) set(c, 2, by_g);
  if (c.wants(0)) set(c, 0, by_x);
}

void cumsum_rule(GradientContext& c) {
  Attributes form = c.op().attributes;
  form.set("reverse", !form.get_or("reverse", false));
  set(c, 0, call("cumsum", {gradient(c)}, std::move(form)));
}

}  // namespace

void add_reduce_gradients(OpRegistry& registry) {
  registry.set_gradient("reduce", reduce_rule);
  registry.cut_gradients({"argmax", "argmin"});
}

void add_normalize_gradients(OpRegistry& registry) {
  registry.set_gradient("softmax", softmax_rule);
  registry.set_gradient("log_softmax", log_softmax_rule);
  registry.set_gradient("layer_norm", layer_norm_rule);
  registry.set_gradient("layer_norm_gradient", layer_norm_gradient_rule);
  registry.set_gradient("cumsum", cumsum_rule);
}

}  // namespace millrace::ops
