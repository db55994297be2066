// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/gradients.h>

/// Gradients of ops on whole sequences. An op that moves rows says by itself which row went where: it moves the numbers of the rows, too, and the
/// gradients go back to the rows of these numbers, in ascending order of the rows of the result.
namespace millrace::ops {
namespace {

const Attributes no_attributes;

Term pooled(const char* kind, const Term& rows, const Attributes& level) {
  Attributes attributes = level;
  attributes.set("kind", std::string(kind));
  return call("sequence_pool", {rows}, std::move(attributes));
}

/// The level of an op under the name that `sequence_pool` and `sequence_expand_as` know it by.
Attributes level_attribute(const GradientContext& c, const char* name = "level") {
  const Attribute* found = c.op().attributes.find(name);
  return found == nullptr ? Attributes{} : Attributes{{"level", *found}};
}

/// Row i for each row of sequence i of `like`, which carries LoD.
Term for_each_row(const Term& x, const Term& like, const Attributes& level) {
  return plain(call("sequence_expand_as", {plain(x), like}, level));
}

/// The gradient of `rows` rows of which row i of g is row places[i].
Term to_rows(const Term& g, const Term& places, const Term& rows) { return scattered_along(g, plain(places), rows, 0, g.type().rank()); }

int row_rank(const GradientContext& c, std::size_t input) {
  const int rank = c.input_type(input).rank();
  if (rank < 0) throw UnsupportedError("op " + c.op().type + ": the gradient of rows of unknown rank");
  return rank;
}

/// [rows] as [rows, 1, …] beside x of `rank` axes.
Term beside(const Term& column, int rank) {
  Ints axes;
  for (int axis = 1; axis < rank; ++axis) axes.push_back(axis);
  return unsqueezed(column, axes);
}

/// The gradient of input 0 of an op that moves its rows: `places` is the result for the numbers of these rows.
void moved_rows_rule(GradientContext& c) {
  row_rank(c, 0);
  const Term x = with_lod(c, 0);
  std::vector<Term> inputs{call("row_numbers", {x})};
  for (std::size_t input = 1; input < c.op().inputs.size(); ++input) inputs.push_back(c.has(input) ? with_lod(c, input) : Term());
  const Term places = call(c.op().type, inputs, c.op().attributes);
  set(c, 0, to_rows(gradient(c), places, extent_of(x, 0)));
}

/// The rule of an op that gives several groups of rows.
void split_by_mask_rule(GradientContext& c) {
  row_rank(c, 0);
  const Term x = with_lod(c, 0);
  const std::vector<Term> places = call_all("split_by_mask", {call("row_numbers", {x}), value(c, 1)}, c.op().attributes);
  Term sum;
  for (const std::size_t half : {0, 1}) {
    const Term g = gradient(c, half);
    if (!g.defined()) continue;
    const Term made = to_rows(g, places[half], extent_of(x, 0));
    sum = sum.defined() ? sum + made : made;
  }
  set(c, 0, sum);
}

/// The gradient of an op that joins the rows of inputs [0, count), each input behind the one before.
void joined_rows_rule(GradientContext& c, std::size_t count) {
  std::vector<Term> inputs;
  std::vector<Term> ends{number(c, 0, DType::i64)};
  for (std::size_t input = 0; input < count; ++input) {
    row_rank(c, input);
    const Term x = with_lod(c, input);
    inputs.push_back(call("row_numbers", {x}) + ends.back());
    ends.push_back(ends.back() + extent_of(x, 0));
  }
  for (std::size_t input = count; input < c.op().inputs.size(); ++input) inputs.push_back(with_lod(c, input));
  const Term all = to_rows(gradient(c), call(c.op().type, inputs, c.op().attributes), ends.back());
  for (std::size_t input = 0; input < count; ++input)
    if (c.wants(input))
      set(c, input, call("slice_by", {all, reshaped_to(ends[input], {1}), reshaped_to(ends[input + 1], {1}), list(c, {0})}));
}

// ---- Pools and softmax ----

/// The number of rows of each sequence, at least 1, as [sequences, 1 …].
Term lengths_of(const Term& x, const Attributes& level, DType dtype, int rank) {
  const Term ones = call("mul", {call("row_numbers", {x}), number(x.at(), 0, DType::i64)}) + 1.0;
  const Term lengths = plain(pooled("sum", ones, level));
  return beside(cast_to(call("maximum", {lengths, number(x.at(), 1, DType::i64)}), dtype), rank);
}

void pool_rule(GradientContext& c) {
  const std::string kind = c.op().attributes.get<std::string>("kind");
  const Attributes level = level_attribute(c);
  const int rank = row_rank(c, 0);
  const DType given = c.input_type(0).dtype, dtype = summing(given);
  const Term x = with_lod(c, 0), g = cast_to(gradient(c), dtype);
  const auto give = [&](const Term& made) { set(c, 0, cast_to(made, given)); };
  if (kind == "sum") return give(for_each_row(g, x, level));
  if (kind == "average" || kind == "sqrt") {
    const Term lengths = lengths_of(x, level, dtype, rank);
    return give(for_each_row(g / (kind == "sqrt" ? call("sqrt", {lengths}) : lengths), x, level));
  }
  if (kind == "max") {
    const Term wins = call("equal", {plain(x), for_each_row(result(c), x, level)});
    const Term counts = plain(pooled("sum", call("lod_reset", {cast_to(wins, dtype), Term(), x}), level));
    const Term shares = g / call("maximum", {counts, number(c, 1, dtype)});
    return give(masked(wins, for_each_row(shares, x, level)));
  }
  const Term numbers = call("row_numbers", {x});
  const Term chosen = for_each_row(pooled(kind.c_str(), numbers, level), x, level);
  give(masked(beside(call("equal", {plain(numbers), chosen}), rank), for_each_row(g, x, level)));
}

void softmax_rule(GradientContext& c) {
  const Attributes level = level_attribute(c);
  const DType given = c.input_type(0).dtype, dtype = summing(given);
  const Term x = with_lod(c, 0), y = cast_to(result(c), dtype), g = cast_to(gradient(c), dtype);
  const Term sums = pooled("sum", call("lod_reset", {g * y, Term(), x}), level);
  set(c, 0, cast_to(y * (g - for_each_row(sums, x, level)), given));
}

// ---- Windows ----

/// The rows of each window side by side, as [T, length, C], and how to go back.
struct Windows {
  Windows(GradientContext& context, std::int64_t start, std::int64_t length) : c(context) {
    const Term rows = with_lod(c, 0);
    before = std::max<std::int64_t>(0, -start) + std::max<std::int64_t>(0, start + length - 1);
    places = plain(call("window_rows", {rows}, {{"context_start", start}, {"context_length", length}}));
    x = plain(rows);
    if (before == 0) {
      all = x;
      return;
    }
    Term border;
    if (c.op().type == "sequence_conv" && c.has(2)) {
      border = value(c, 2);
    } else {
      const Term dims = call("concat", {list(c, {before}), shape_of(x, 1, 2)}, {{"axis", std::int64_t{0}}});
      border = call("constant_of_shape", {dims}, {{"value", zeros_scalar(x.dtype())}});
    }
    all = call("concat", {x, border}, {{"axis", std::int64_t{0}}});
  }
  Term rows() const { return call("gather", {all, places}, {{"axis", std::int64_t{0}}}); }
  /// Adds up the gradients of the windows: gradients of the rows, and behind them gradients of the border.
  Term back(const Term& g) const { return scattered_along(g, places, extent_of(all, 0), 0, 2); }
  Term of_rows(const Term& sums) const {
    return before == 0 ? sums : call("slice_by", {sums, list(c, {0}), shape_of(x, 0, 1), list(c, {0})});
  }
  Term of_border(const Term& sums) const { return call("slice_by", {sums, shape_of(x, 0, 1), shape_of(sums, 0, 1), list(c, {0})}); }

  GradientContext& c;
  std::int64_t before = 0;  ///< rows of the border
  Term places, x, all;
};

void conv_rule(GradientContext& c) {
  const std::int64_t length = c.op().attributes.get<std::int64_t>("context_length");
  const Windows windows(c, c.op().attributes.get_or("context_start", std::int64_t{0}), length);
  const Term g = gradient(c);
  const auto as_rows = [&](const Term& x, const Term& width) {
    return call("reshape_to", {x, call("concat", {shape_of(windows.x, 0, 1), width}, {{"axis", std::int64_t{0}}})}, {{"allowzero", true}});
  };
  if (c.wants(1)) {
    const Term rows = as_rows(windows.rows(), shape_of(value(c, 1), 0, 1));
    set(c, 1, call("gemm", {rows, g}, {{"trans_a", true}}));
  }
  if (!c.wants(0) && !(c.has(2) && c.wants(2))) return;
  const Term wide = call("gemm", {g, value(c, 1)}, {{"trans_b", true}});
  const Term sums =
      windows.back(as_rows(wide, call("concat", {list(c, {length}), shape_of(windows.x, 1, 2)}, {{"axis", std::int64_t{0}}})));
  set(c, 0, windows.of_rows(sums));
  if (c.has(2) && c.wants(2)) set(c, 2, windows.of_border(sums));
}

void row_conv_rule(GradientContext& c) {
  const std::optional<DDim>& filter = c.input_type(1).shape;
  if (!filter || (*filter)[0] == DDim::unknown) throw UnsupportedError("op row_conv: the gradient of a filter of unknown length");
  if ((*filter)[0] == 0) return;
  const Windows windows(c, 0, (*filter)[0]);
  const Term g = unsqueezed(gradient(c), {1});
  if (c.wants(1)) set(c, 1, reduced("sum", g * windows.rows(), {0}, false));
  if (c.wants(0)) set(c, 0, windows.of_rows(windows.back(g * value(c, 1))));
}

// ---- Padded sequences ----

void pad_rule(GradientContext& c) {
  const Term g = gradient(c);
  const Term lengths = result(c, 1);
  if (c.wants(0)) set(c, 0, plain(call("sequence_unpad", {g, lengths})));
  if (!c.has(1) || !c.wants(1)) return;
  const int rank = c.output_type(0).rank();
  if (rank < 0) throw UnsupportedError("op sequence_pad: the gradient of padding of rows of unknown rank");
  Ints behind;
  for (int axis = 2; axis < rank; ++axis) behind.push_back(axis);
  const Term inside = call("sequence_mask", {lengths, extent_of(g, 1)}, {{"to", DType::boolean}});
  const Term border = masked(call("logical_not", {unsqueezed(inside, behind)}), g);
  const Term padding = value(c, 1);
  const std::optional<DDim>& shape = c.input_type(1).shape;
  if (shape && c.input_type(1).is_scalar()) return set_total(c, 1, border);
  // One element that is [1] stretches over rows of any rank.
  set(c, 1, call("sum_to", {border, padding}));
}

void unpad_rule(GradientContext& c) {
  const Term x = with_lod(c, 0);
  const int rank = row_rank(c, 0);
  const Term steps = shape_of(x, 0, 2);
  const Term count = reduced("prod", steps, {0}, false);
  const Term numbers = call("reshape_to", {numbers_to(count), steps}, {{"allowzero", true}});
  const Term places = call("sequence_unpad", {numbers, value(c, 1)}, c.op().attributes);
  const Term made = scattered_along(gradient(c), plain(places), count, 0, rank - 1);
  set(c, 0, call("reshape_to", {made, shape_of(plain(x))}, {{"allowzero", true}}));
}

void reshape_rule(GradientContext& c) { set(c, 0, call("reshape_to", {gradient(c), shape_of(value(c, 0))}, {{"allowzero", true}})); }

// ---- Picked rows ----

void scatter_rule(GradientContext& c) {
  const Term g = gradient(c);
  set(c, 0, g);
  if (!c.wants(2)) return;
  const Term ids = with_lod(c, 1);
  const Term column = reshaped_to(cast_to(plain(ids), DType::i64), {-1, 1});
  const Term rows = for_each_row(numbers_to(extent_of(g, 0)), ids, no_attributes);
  const Term places = call("concat", {reshaped_to(rows, {-1, 1}), column}, {{"axis", std::int64_t{1}}});
  set(c, 2, call("reshape_to", {call("gather_nd", {g, places}), shape_of(value(c, 2))}, {{"allowzero", true}}));
}

void top_k_rule(GradientContext& c) {
  const Term g = gradient(c);
  if (!g.defined()) return;
  const Term x = with_lod(c, 0), best = result_with_lod(c, 1);
  const Term first = pooled("first", call("row_numbers", {x}), no_attributes);
  const Term places = plain(best) + beside(for_each_row(first, best, no_attributes), row_rank(c, 0));
  const DType sums = summing(g.dtype());
  const Term made = call("scatter_elements", {zeros_like(plain(x), sums), places, cast_to(g, sums)},
                         {{"axis", std::int64_t{0}}, {"reduction", std::string("add")}});
  set(c, 0, cast_to(made, g.dtype()));
}

void same_rule(GradientContext& c) { set(c, 0, gradient(c)); }

}  // namespace

void add_sequence_gradients(OpRegistry& registry) {
  for (const char* name : {"drop_lod", "lod_reset", "lod_append", "same_steps"}) registry.set_gradient(name, same_rule);
  for (const char* name : {"sequence_reverse", "sequence_slice", "sequence_expand", "sequence_expand_as", "sequence_trim"})
    registry.set_gradient(name, moved_rows_rule);
  registry.set_gradient("sequence_concat", [](GradientContext& c) { joined_rows_rule(c, c.op().inputs.size()); });
  registry.set_gradient("split_by_mask", split_by_mask_rule);
  registry.set_gradient("merge_by_mask", [](GradientContext& c) { joined_rows_rule(c, 2); });
  registry.set_gradient("sequence_pool", pool_rule);
  registry.set_gradient("sequence_softmax", softmax_rule);
  registry.set_gradient("sequence_conv", conv_rule);
  registry.set_gradient("row_conv", row_conv_rule);
  registry.set_gradient("sequence_pad", pad_rule);
  registry.set_gradient("sequence_unpad", unpad_rule);
  registry.set_gradient("sequence_reshape", reshape_rule);
  registry.set_gradient("sequence_scatter", scatter_rule);
  registry.set_gradient("sequence_top_k", top_k_rule);
  registry.cut_gradients(
      {"sequence_enumerate", "sequence_erase", "sequence_mask", "step_mask", "constant_rows", "edit_distance", "ctc_align", "gather_tree"});
}

}  // namespace millrace::ops
