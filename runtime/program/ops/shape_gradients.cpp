// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/gradients.h>

/// Gradients of ops that move elements, or say them several times.
namespace millrace::ops {
namespace {

// ---- Extents ----

/// The gradient with the extents of X again.
void reshaped_rule(GradientContext& c) {
  const Term g = gradient(c);
  const std::optional<DDim>& shape = c.input_type(0).shape;
  const std::optional<DDim>& made = c.output_type(0).shape;
  const bool known =
      shape && std::count(shape->begin(), shape->end(), DDim::unknown) <= 1 && std::count(shape->begin(), shape->end(), 0) == 0;
  if (!known) return set(c, 0, call("reshape_to", {g, shape_of(value(c, 0))}, {{"allowzero", true}}));
  Ints wanted(shape->begin(), shape->end());
  // Rows that stay where they are: 0 copies them, as live rows are followed.
  if (!wanted.empty() && wanted[0] == DDim::unknown && made && made->rank() > 0 && (*made)[0] == DDim::unknown) {
    const auto count = [](const DDim& dims) { return product_of(dims, 1, dims.rank()); };
    if (count(*shape) != DDim::unknown && count(*shape) == count(*made)) wanted[0] = 0;
  }
  set(c, 0, reshaped_to(g, wanted));
}

void transpose_rule(GradientContext& c) {
  const Ints perm = c.op().attributes.get_or("perm", Ints{});
  if (perm.empty()) return set(c, 0, call("transpose", {gradient(c)}));
  Ints back(perm.size());
  const std::vector<int> axes = checked_axes(perm, static_cast<int>(perm.size()));
  for (std::size_t axis = 0; axis < axes.size(); ++axis) back[static_cast<std::size_t>(axes[axis])] = static_cast<std::int64_t>(axis);
  set(c, 0, permuted(gradient(c), back));
}

/// Back by the inverse permutation: place perm[i] of it holds i.
void transpose_by_rule(GradientContext& c) {
  const Term perm = cast_to(value(c, 1), DType::i64);
  const Term count = extent_of(perm, 0);
  const Term places = numbers_to(count);
  const Term inverse = call("scatter_elements", {places, call("mod", {perm, count}), places}, {{"axis", std::int64_t{0}}});
  set(c, 0, call("transpose_by", {gradient(c), inverse}));
}

/// The axes of a squeeze without axes may be known to the run alone.
void squeeze_rule(GradientContext& c) {
  const Ints axes = c.op().attributes.get_or("axes", Ints{});
  if (axes.empty()) return reshaped_rule(c);
  const int rank = c.input_type(0).rank();
  if (rank < 0) return set(c, 0, call("reshape_to", {gradient(c), shape_of(value(c, 0))}, {{"allowzero", true}}));
  set(c, 0, unsqueezed(gradient(c), axes));
}

void unsqueeze_rule(GradientContext& c) { set(c, 0, squeezed(gradient(c), c.op().attributes.get<Ints>("axes"))); }

// ---- Pieces ----

void concat_rule(GradientContext& c) {
  const Term g = gradient(c);
  const std::int64_t axis = c.op().attributes.get<std::int64_t>("axis");
  const std::size_t count = c.op().inputs.size();
  Ints sizes;
  for (std::size_t input = 0; input < count; ++input) {
    const std::optional<DDim>& shape = c.input_type(input).shape;
    sizes.push_back(shape ? (*shape)[checked_axis(axis, shape->rank())] : DDim::unknown);
  }
  if (std::find(sizes.begin(), sizes.end(), DDim::unknown) == sizes.end()) {
    const std::vector<Term> parts = call_all("split", {g}, {{"axis", axis}, {"sizes", sizes}});
    for (std::size_t input = 0; input < count; ++input) set(c, input, parts[input]);
    return;
  }
  // The gradient of an input reaches from the end of the one before to its own end.
  Term begin = list(c, {0});
  for (std::size_t input = 0; input < count; ++input) {
    const Term x = value(c, input);
    const Term extent = call("gather", {shape_of(x), list(c, {axis})});
    const Term end = begin + extent;
    if (c.wants(input)) set(c, input, call("slice_by", {g, begin, end, list(c, {axis})}));
    begin = end;
  }
}

/// Zeros around a piece of one axis.
Term between_zeros(const Term& g, int rank, int axis, std::int64_t before, std::int64_t behind) {
  if (before == 0 && behind == 0) return g;
  Ints pads(2 * static_cast<std::size_t>(rank), 0);
  pads[static_cast<std::size_t>(axis)] = before;
  pads[static_cast<std::size_t>(axis + rank)] = behind;
  return call("pad", {g}, {{"pads", pads}});
}

void split_rule(GradientContext& c) {
  const std::int64_t axis = c.op().attributes.get<std::int64_t>("axis");
  const Ints sizes = c.op().attributes.get<Ints>("sizes");
  std::vector<Term> parts;
  for (std::size_t output = 0; output < sizes.size(); ++output)
    if (const Term g = gradient(c, output); g.defined()) parts.push_back(g);
  if (parts.size() == sizes.size()) return set(c, 0, call("concat", parts, {{"axis", axis}}));
  const int rank = std::max(c.output_type(0).rank(), c.input_type(0).rank());
  if (rank < 0) throw UnsupportedError("op split: the gradient of some of the parts of an input of unknown rank");
  const std::int64_t all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  Term sum;
  std::int64_t begin = 0;
  for (std::size_t output = 0; output < sizes.size(); begin += sizes[output++]) {
    const Term g = gradient(c, output);
    if (!g.defined()) continue;
    const Term part = between_zeros(g, rank, checked_axis(axis, rank), begin, all - begin - sizes[output]);
    sum = sum.defined() ? sum + part : part;
  }
  set(c, 0, sum);
}

/// The piece of X that `slice` takes, with its lists complete.
struct Piece {
  Ints starts, ends, axes, steps;
};

Piece piece_of(const Attributes& attributes) {
  Piece piece{attributes.get<Ints>("starts"), attributes.get<Ints>("ends"), attributes.get_or("axes", Ints{}),
              attributes.get_or("steps", Ints{})};
  if (piece.axes.empty())
    for (std::size_t axis = 0; axis < piece.starts.size(); ++axis) piece.axes.push_back(static_cast<std::int64_t>(axis));
  if (piece.steps.empty()) piece.steps.assign(piece.starts.size(), 1);
  return piece;
}

void piece_rule(GradientContext& c, const Piece& piece) {
  const Term g = gradient(c);
  const std::optional<DDim>& shape = c.input_type(0).shape;
  if (shape && piece.axes.size() == 1 && piece.steps[0] == 1) {
    const int axis = checked_axis(piece.axes[0], shape->rank());
    const std::int64_t extent = (*shape)[axis];
    if (extent != DDim::unknown) {
      const std::int64_t start = std::clamp<std::int64_t>(piece.starts[0] < 0 ? piece.starts[0] + extent : piece.starts[0], 0, extent);
      const std::int64_t length = (*c.output_type(0).shape)[axis];
      return set(c, 0, between_zeros(g, shape->rank(), axis, start, extent - start - length));
    }
  }
  set(c, 0,
      call("put_slice", {zeros_like(value(c, 0)), g},
           {{"starts", piece.starts}, {"ends", piece.ends}, {"axes", piece.axes}, {"steps", piece.steps}}));
}

/// The numbers of the elements that are taken, and the gradients at their places.
void slice_by_rule(GradientContext& c) {
  Piece piece;
  Ints* lists[] = {&piece.starts, &piece.ends, &piece.axes, &piece.steps};
  bool constant = true;
  for (std::size_t input = 1; input <= 4; ++input) {
    if (!c.has(input)) continue;
    const auto held = constant_integers(c.program(), c.op(), input);
    constant = constant && held.has_value();
    if (held) *lists[input - 1] = *held;
  }
  if (constant)
    return piece_rule(c, piece_of({{"starts", piece.starts}, {"ends", piece.ends}, {"axes", piece.axes}, {"steps", piece.steps}}));
  const Term x = value(c, 0);
  const Term count = call("size", {x});
  const Term numbers = call("reshape_to", {numbers_to(count), shape_of(x)}, {{"allowzero", true}});
  std::vector<Term> inputs{numbers};
  for (std::size_t input = 1; input < c.op().inputs.size(); ++input) inputs.push_back(c.has(input) ? value(c, input) : Term());
  const Term taken = reshaped_to(call("slice_by", inputs), {-1, 1});
  const Term zeros = call("constant_of_shape", {reshaped_to(count, {1})}, {{"value", zeros_scalar(c.input_type(0).dtype)}});
  const Term made = call("scatter_nd", {zeros, taken, reshaped_to(gradient(c), {-1})}, {{"reduction", std::string("add")}});
  set(c, 0, call("reshape_to", {made, shape_of(x)}, {{"allowzero", true}}));
}

// ---- More of the same elements ----

void expand_rule(GradientContext& c) { set_summed(c, 0, gradient(c)); }

/// [r0, d0, r1, d1, …], summed over the repeats.
void tile_rule(GradientContext& c) {
  const int rank = c.input_type(0).rank();
  if (rank < 0) throw UnsupportedError("op tile: the gradient of an input of unknown rank");
  Term g = gradient(c);
  const Term x = value(c, 0);
  const Term repeats = cast_to(value(c, 1), DType::i64);
  // Axis by axis, the last one first, so that no rank is too great.
  for (int axis = rank - 1; axis >= 0; --axis) {
    const auto told = constant_integers(c.program(), c.op(), 1);
    if (told && (*told)[static_cast<std::size_t>(axis)] == 1) continue;
    std::vector<Term> extents;
    if (axis > 0) extents.push_back(shape_of(g, 0, axis));
    extents.push_back(call("slice", {repeats}, {{"starts", Ints{axis}}, {"ends", Ints{axis + 1}}, {"axes", Ints{0}}, {"steps", Ints{1}}}));
    extents.push_back(shape_of(x, axis, axis + 1));
    if (axis + 1 < rank) extents.push_back(shape_of(g, axis + 1, rank));
    const Term apart = call("reshape_to", {g, call("concat", extents, {{"axis", std::int64_t{0}}})}, {{"allowzero", true}});
    g = reduced("sum", apart, {axis}, false);
  }
  set(c, 0, g);
}

/// The gradient of elements that were taken away or are zeros is 0; a constant border has none.
void constant_pad_rule(GradientContext& c, const Ints& pads) {
  Ints back;
  for (const std::int64_t pad : pads) back.push_back(-pad);
  set(c, 0, call("pad", {gradient(c)}, {{"pads", back}}));
}

/// The element of X that each element of the result is, axis by axis.
void copied_pad_rule(GradientContext& c, const Ints& pads, const std::string& mode) {
  const auto rank = static_cast<int>(pads.size() / 2);
  Term g = gradient(c);
  const Term x = value(c, 0);
  for (int axis = rank - 1; axis >= 0; --axis) {
    const std::int64_t before = pads[static_cast<std::size_t>(axis)], behind = pads[static_cast<std::size_t>(axis + rank)];
    if (before == 0 && behind == 0) continue;
    const Term extent = extent_of(x, axis);
    const Term places = call("pad", {numbers_to(extent)}, {{"pads", Ints{before, behind}}, {"mode", mode}});
    g = scattered_along(g, places, extent, axis, rank);
  }
  set(c, 0, g);
}

void pads_rule(GradientContext& c, const Ints& pads) {
  const std::string mode = c.op().attributes.get_or("mode", std::string("constant"));
  if (!c.wants(0)) return;
  mode == "constant" ? constant_pad_rule(c, pads) : copied_pad_rule(c, pads, mode);
}

/// The border is where a plane of ones has zeros around it.
void pad_value_rule(GradientContext& c) {
  const std::string mode = c.op().attributes.get_or("mode", std::string("constant"));
  if (!c.has(2) || !c.wants(2) || mode != "constant") return;
  const Term zeros = zeros_like(value(c, 0));
  const Term border = call("pad_by", {zeros, value(c, 1), number(c, 1, zeros.dtype())});
  set_total(c, 2, gradient(c) * border);
}

void pad_by_rule(GradientContext& c) {
  pad_value_rule(c);
  if (!c.wants(0)) return;
  if (const auto pads = constant_integers(c.program(), c.op(), 1)) return pads_rule(c, *pads);
  if (c.op().attributes.get_or("mode", std::string("constant")) != "constant")
    throw UnsupportedError("op pad_by: the gradient of pads that are computed, in another mode than constant");
  set(c, 0, call("pad_by", {gradient(c), call("neg", {value(c, 1)})}));
}

}  // namespace

Tensor zeros_scalar(DType dtype) {
  return visit_dtype(dtype, []<class T>(std::type_identity<T>) { return Tensor::scalar(T{}); });
}

Term scattered_along(const Term& g, const Term& index, const Term& extent, int axis, int rank) {
  const int places = index.type().rank();
  const int all = rank - 1 + places;
  // [places…, others…]: whole blocks are added, in the order of the places.
  Ints front, others, perm, back;
  for (int at = 0; at < places; ++at) front.push_back(axis + at);
  for (int at = 0; at < all; ++at)
    if (at < axis || at >= axis + places) others.push_back(at);
  perm = front;
  perm.insert(perm.end(), others.begin(), others.end());
  const Term blocks = axis == 0 ? g : permuted(g, perm);
  const Term sums = cast_to(blocks, summing(g.dtype()));
  std::vector<Term> extents{reshaped_to(extent, {1})};
  if (rank > 1) extents.push_back(shape_of(sums, places, all));
  const Term dims = extents.size() == 1 ? extents[0] : call("concat", extents, {{"axis", std::int64_t{0}}});
  const Term zeros = call("constant_of_shape", {dims}, {{"value", zeros_scalar(sums.dtype())}});
  const Term made = call("scatter_nd", {zeros, unsqueezed(index, {-1}), sums}, {{"reduction", std::string("add")}});
  for (int at = 0; at < rank; ++at) back.push_back(at == axis ? 0 : at < axis ? at + 1 : at);
  return cast_to(axis == 0 ? made : permuted(made, back), g.dtype());
}

void add_shape_gradients(OpRegistry& registry) {
  registry.set_gradient("transpose", transpose_rule);
  registry.set_gradient("transpose_by", transpose_by_rule);
  registry.set_gradient("squeeze", squeeze_rule);
  registry.set_gradient("unsqueeze", unsqueeze_rule);
  registry.cut_gradients({"shape", "size"});
}

void add_reshape_gradients(OpRegistry& registry) {
  for (const char* name : {"reshape", "reshape_to", "flatten"}) registry.set_gradient(name, reshaped_rule);
}

void add_piece_gradients(OpRegistry& registry) {
  registry.set_gradient("concat", concat_rule);
  registry.set_gradient("split", split_rule);
  registry.set_gradient("slice", [](GradientContext& c) { piece_rule(c, piece_of(c.op().attributes)); });
  registry.set_gradient("slice_by", slice_by_rule);
  registry.set_gradient("reverse", [](GradientContext& c) { set(c, 0, call("reverse", {gradient(c)}, c.op().attributes)); });
}

void add_spread_gradients(OpRegistry& registry) {
  registry.set_gradient("expand", expand_rule);
  registry.set_gradient("tile", tile_rule);
  registry.set_gradient("pad", [](GradientContext& c) { pads_rule(c, c.op().attributes.get<Ints>("pads")); });
  registry.set_gradient("pad_by", pad_by_rule);
}

void add_constant_gradients(OpRegistry& registry) {
  registry.set_gradient("cast", [](GradientContext& c) { set(c, 0, cast_to(gradient(c), c.input_type(0).dtype)); });
  registry.set_gradient("identity", [](GradientContext& c) { set(c, 0, gradient(c)); });
  // start + i·delta: the places are those of the result.
  registry.set_gradient("range", [](GradientContext& c) {
    const Term g = gradient(c);
    if (c.wants(0)) set_total(c, 0, g);
    if (c.wants(2)) set_total(c, 2, g * cast_to(numbers_to(extent_of(g, 0)), g.dtype()));
  });
  registry.cut_gradients({"bit_cast", "constant", "constant_of_shape", "one_hot", "random"});
}

}  // namespace millrace::ops
