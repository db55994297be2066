// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/gradients.h>

/// Gradients of elements picked by place. An element picked several times gets several gradients, one after the other in the order of the index.
namespace millrace::ops {
namespace {

void gather_rule(GradientContext& c) {
  const int rank = rank_of(c, 0);
  rank_of(c, 1);
  const int axis = checked_axis(c.op().attributes.get_or("axis", std::int64_t{0}), rank);
  const std::int64_t extent = (*c.input_type(0).shape)[axis];
  const Term count = extent == DDim::unknown ? extent_of(value(c, 0), axis) : number(c, static_cast<double>(extent), DType::i64);
  set(c, 0, scattered_along(gradient(c), value(c, 1), count, axis, rank));
}

/// Updates added to zeros like X, in f32 for f16 and bf16. `op`: scatter_nd or scatter_elements.
Term added_to_zeros(const std::string& op, const Term& like, const Term& index, const Term& updates, Attributes attributes) {
  const Term sums = cast_to(updates, summing(updates.dtype()));
  attributes.set("reduction", std::string("add"));
  return cast_to(call(op, {zeros_like(like, sums.dtype()), index, sums}, std::move(attributes)), updates.dtype());
}

Attributes axis_attribute(std::int64_t axis) { return {{"axis", axis}}; }

void gather_elements_rule(GradientContext& c) {
  const Attributes form = axis_attribute(c.op().attributes.get_or("axis", std::int64_t{0}));
  set(c, 0, added_to_zeros("scatter_elements", value(c, 0), value(c, 1), gradient(c), form));
}

/// The index with the numbers of the batch in front of its places.
Term with_batch(const Term& index, int batch_axes) {
  const int rank = index.type().rank();
  Term all = cast_to(index, DType::i64);
  for (int axis = batch_axes - 1; axis >= 0; --axis) {
    Ints aside(static_cast<std::size_t>(rank), 1);
    aside[static_cast<std::size_t>(axis)] = -1;
    const Term count = extent_of(index, axis);
    Term column = numbers_to(count);
    Ints places;
    for (int at = 0; at < rank; ++at)
      if (at != axis) places.push_back(at);
    column = unsqueezed(column, places);
    const Term wanted = call("concat", {shape_of(index, 0, rank - 1), list(index.at(), {1})}, {{"axis", std::int64_t{0}}});
    all = call("concat", {call("expand", {column, wanted}), all}, {{"axis", std::int64_t{-1}}});
  }
  return all;
}

void gather_nd_rule(GradientContext& c) {
  rank_of(c, 1);
  const auto batch_axes = static_cast<int>(c.op().attributes.get_or("batch_dims", std::int64_t{0}));
  set(c, 0, added_to_zeros("scatter_nd", value(c, 0), with_batch(value(c, 1), batch_axes), gradient(c), {}));
}

// ---- scatter_nd, scatter_elements ----

/// Both forms of a scatter: the op, the op that picks what it writes, and their attributes less the reduction.
struct Scatter {
  explicit Scatter(GradientContext& context) : c(context), elements(c.op().type == "scatter_elements"), index(value(c, 1)), g(gradient(c)) {
    if (elements) form = axis_attribute(c.op().attributes.get_or("axis", std::int64_t{0}));
  }
  Term put(const Term& x, const Term& updates, const std::string& reduction) const {
    Attributes attributes = form;
    attributes.set("reduction", reduction);
    return call(elements ? "scatter_elements" : "scatter_nd", {x, index, updates}, std::move(attributes));
  }
  Term pick(const Term& x) const { return call(elements ? "gather_elements" : "gather_nd", {x, index}, form); }
  void give(std::size_t input, const Term& made) const {
    if (c.wants(input)) set(c, input, made);
  }

  GradientContext& c;
  bool elements;
  Attributes form;
  Term index, g;
};

/// The later of two updates for one place has its gradient, the other one none.
void replacing_rule(const Scatter& s) {
  if (s.c.wants(0)) s.give(0, s.put(s.g, zeros_like(value(s.c, 2)), "none"));
  if (!s.c.wants(2)) return;
  const Term updates = value(s.c, 2);
  const Term numbers = call("reshape_to", {numbers_to(call("size", {updates})), shape_of(updates)}, {{"allowzero", true}});
  const Term last = s.pick(s.put(zeros_like(value(s.c, 0), DType::i64), numbers, "none"));
  s.give(2, masked(call("equal", {last, numbers}), s.pick(s.g)));
}

/// The product of the others: see `reduce`.
void product_rule(const Scatter& s) {
  const Term x = value(s.c, 0), updates = value(s.c, 2);
  const auto zero = [](const Term& of) { return compare("equal", of, 0); };
  const auto divisor = [&](const Term& of) { return where(zero(of), number(s.c, 1, of.dtype()), of); };
  const auto is_zero = [&](const Term& of) { return cast_to(zero(of), of.dtype()); };
  const Term product = s.put(divisor(x), divisor(updates), "mul");
  const Term zeros = s.put(is_zero(x), is_zero(updates), "add");
  const auto others = [&](const Term& of, const Term& all, const Term& count, const Term& g) {
    return masked(compare("equal", count - is_zero(of), 0), g * (all / divisor(of)));
  };
  s.give(0, others(x, product, zeros, s.g));
  s.give(2, others(updates, s.pick(product), s.pick(zeros), s.pick(s.g)));
}

/// All that are as extreme share the gradient equally.
void extreme_rule(const Scatter& s) {
  const Term x = value(s.c, 0), updates = value(s.c, 2), y = result(s.c);
  const Term kept = call("equal", {x, y}), won = call("equal", {updates, s.pick(y)});
  const Term share = s.g / s.put(cast_to(kept, s.g.dtype()), cast_to(won, s.g.dtype()), "add");
  s.give(0, masked(kept, share));
  s.give(2, masked(won, s.pick(share)));
}

void scatter_rule(GradientContext& c) {
  const std::string reduction = c.op().attributes.get_or("reduction", std::string("none"));
  const Scatter s(c);
  if (reduction == "none") return replacing_rule(s);
  if (reduction == "mul") return product_rule(s);
  if (reduction != "add") return extreme_rule(s);
  s.give(0, s.g);
  if (c.wants(2)) s.give(2, s.pick(s.g));
}

void top_k_rule(GradientContext& c) {
  const Term g = gradient(c);
  if (!g.defined()) return;
  const Attributes form = axis_attribute(c.op().attributes.get_or("axis", std::int64_t{-1}));
  set(c, 0, added_to_zeros("scatter_elements", value(c, 0), result(c, 1), g, form));
}

}  // namespace

void add_gather_gradients(OpRegistry& registry) {
  registry.set_gradient("gather", gather_rule);
  registry.set_gradient("embedding", gather_rule);
  registry.set_gradient("gather_elements", gather_elements_rule);
}

void add_pick_gradients(OpRegistry& registry) {
  registry.set_gradient("top_k", top_k_rule);
  registry.set_gradient("gather_nd", gather_nd_rule);
  registry.set_gradient("scatter_nd", scatter_rule);
  registry.set_gradient("scatter_elements", scatter_rule);
  registry.cut_gradients({"non_zero"});
}

}  // namespace millrace::ops
