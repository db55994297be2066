// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/models/import/with_onnx/axes.h>
#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// Images at places that are computed: GridSample, AffineGrid, CenterCropPad.
namespace millrace::importing {
namespace {

VarId list_of(Importer& to, const std::vector<Extent>& extents) {
  std::vector<VarId> each;
  for (const Extent& extent : extents) each.push_back(as_list(to, extent));
  return to.emit1("concat", each, {{"axis", std::int64_t{0}}});
}

// ---- GridSample: X [N, C, D1 …], grid [N, O1 …, r], the place along the last axis first

struct Form {
  std::string mode;
  std::string padding;
  bool corners = false;
};

/// One axis of X: its extent as a float, and the borders between which places lie.
struct Axis {
  VarId length, least, most;
};

/// A neighbour of each place along one axis: its index, whether it is inside, its weight (`no_var`: 1).
struct Neighbour {
  VarId index, inside, weight = no_var;
};

/// Mirrored at the borders until it lies between them.
VarId reflected(const Formula& f, const Axis& axis, VarId v) {
  const VarId range = f.minus(axis.most, axis.least);
  const VarId flat = f.op("less_equal", range, 0.0);
  const VarId period = f.where(flat, f.number(1), range);
  const VarId below = f.op("less", v, axis.least);
  const VarId beyond = f.op("maximum", f.where(below, f.minus(axis.least, v), f.minus(v, axis.most)), f.number(0));
  const VarId times = f.op("floor", f.over(beyond, period));
  const VarId rest = f.minus(beyond, f.times(times, period));
  const VarId odd = f.op("equal", f.minus(times, f.times(f.op("floor", f.times(times, 0.5)), 2.0)), 1.0);
  const VarId from_least = f.plus(axis.least, rest), from_most = f.minus(axis.most, rest);
  const VarId moved = f.where(below, f.where(odd, from_most, from_least), f.where(odd, from_least, from_most));
  const VarId outside = f.op("greater", beyond, 0.0);
  return f.where(outside, f.where(flat, axis.least, moved), v);
}

VarId clamped(const Formula& f, const Axis& axis, VarId v) {
  return f.op("maximum", f.op("minimum", v, f.minus(axis.length, 1.0)), f.number(0));
}

/// Where X is looked up: places outside are moved in, as the padding says.
VarId place_of(const Formula& f, const Form& form, const Axis& axis, VarId said) {
  const VarId wide = f.plus(said, 1.0);
  VarId v = form.corners ? f.times(f.times(wide, 0.5), f.minus(axis.length, 1.0)) : f.times(f.minus(f.times(wide, axis.length), 1.0), 0.5);
  if (form.mode == "nearest") v = f.op("round", v);
  if (form.padding == "reflection") return reflected(f, axis, v);
  if (form.padding != "border") return v;
  const VarId outside = f.op("logical_or", f.op("less", v, axis.least), f.op("greater", v, axis.most));
  return f.where(outside, clamped(f, axis, v), v);
}

/// The cubic convolution of Keys (1981) with α = −0.75, for the neighbour that is `distance` ≥ 0 away.
VarId cubic_weight(const Formula& f, VarId distance, bool far) {
  const double a = -0.75;
  const double c3 = far ? a : a + 2, c2 = far ? -5 * a : -(a + 3), c1 = far ? 8 * a : 0, c0 = far ? -4 * a : 1;
  return f.plus(f.times(f.plus(f.times(f.plus(f.times(distance, c3), c2), distance), c1), distance), c0);
}

std::vector<Neighbour> neighbours(const Formula& f, const Form& form, const Axis& axis, VarId place) {
  const bool nearest = form.mode == "nearest", linear = form.mode == "linear";
  const VarId base = nearest ? place : f.op("floor", place);
  const VarId part = f.minus(place, base);
  std::vector<Neighbour> all;
  for (int k = linear || nearest ? 0 : -1; k <= (nearest ? 0 : linear ? 1 : 2); ++k) {
    Neighbour one{f.plus(base, static_cast<double>(k)), no_var};
    if (linear) one.weight = k == 0 ? f.minus(f.number(1), part) : part;
    if (!linear && !nearest) one.weight = cubic_weight(f, f.op("abs", f.plus(part, static_cast<double>(-k))), k == -1 || k == 2);
    if (form.padding == "zeros")
      one.inside = f.op("logical_and", f.op("greater_equal", one.index, 0.0), f.op("less", one.index, axis.length));
    if (form.padding == "reflection") one.index = reflected(f, axis, one.index);
    one.index = f.cast(clamped(f, axis, one.index), DType::i64);
    all.push_back(one);
  }
  return all;
}

/// Sums over the neighbours along all axes of X, flat [N, C, P].
class Sampler {
 public:
  Sampler(Importer& to, const Formula& f, VarId x, VarId dims, const std::vector<std::vector<Neighbour>>& axes,
          const std::vector<VarId>& strides)
      : to_(to), f_(f), x_(x), dims_(dims), axes_(axes), strides_(strides) {}

  VarId total() {
    add(0, no_var, no_var, no_var);
    return total_;
  }

 private:
  VarId both(const char* op, VarId a, VarId b) const { return a == no_var ? b : b == no_var ? a : to_.emit1(op, {a, b}); }
  void add(std::size_t axis, VarId index, VarId inside, VarId weight) {
    if (axis == axes_.size()) return add_term(index, inside, weight);
    for (const Neighbour& one : axes_[axis])
      add(axis + 1, both("add", index, to_.emit1("mul", {one.index, strides_[axis]})), both("logical_and", inside, one.inside),
          both("mul", weight, one.weight));
  }
  void add_term(VarId index, VarId inside, VarId weight) {
    const auto channel = [&](VarId v) { return f_.unsqueezed(v, {1}); };
    const VarId everywhere = to_.emit1("expand", {channel(index), dims_});
    VarId term = to_.emit1("gather_elements", {x_, everywhere}, {{"axis", std::int64_t{2}}});
    if (weight != no_var) term = f_.times(term, channel(weight));
    if (inside != no_var) term = f_.where(channel(inside), term, f_.number(0));
    total_ = both("add", total_, term);
  }

  Importer& to_;
  const Formula& f_;
  VarId x_, dims_;
  const std::vector<std::vector<Neighbour>>& axes_;
  const std::vector<VarId>& strides_;
  VarId total_ = no_var;
};

void grid_sample(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0), grid = to.in(node, 1);
  const DType dtype = to.type(x).dtype;
  const Formula f(to, dtype == DType::f64 ? DType::f64 : DType::f32);
  const int spatial = to.rank(x) - 2;
  if (spatial < 1 || spatial > 3 || to.rank(grid) != spatial + 2)
    throw UnsupportedError("expected X [N, C, D1, …] with 1 to 3 axes D1, … and a grid of its rank, found " + to.type(x).to_string() +
                           " and " + to.type(grid).to_string());
  Form form;
  const std::string mode =
      node.word("mode", to.opset() < 20 ? "bilinear" : "linear", {"linear", "bilinear", "nearest", "cubic", "bicubic"});
  form.mode = mode == "bilinear" ? "linear" : mode == "bicubic" ? "cubic" : mode;
  form.padding = node.word("padding_mode", "zeros", {"zeros", "border", "reflection"});
  form.corners = node.flag("align_corners", false);
  const Extent n = extent_at(to, grid, 0), points = product(to, grid, 1, spatial + 1), channels = extent_at(to, x, 1);
  const VarId flat_grid = f.taken(reshaped(to, grid, {n, points, {spatial, no_var}}));
  std::vector<std::vector<Neighbour>> axes;
  std::vector<VarId> strides;
  for (int d = 0; d < spatial; ++d) {
    const VarId length = f.taken(extent_of(to, x, 2 + d));
    const Axis axis = form.corners ? Axis{length, f.number(0), f.minus(length, 1.0)} : Axis{length, f.number(-0.5), f.minus(length, 0.5)};
    const VarId said = to.emit1("gather", {flat_grid, number(to, spatial - 1 - d)}, {{"axis", std::int64_t{2}}});
    axes.push_back(neighbours(f, form, axis, place_of(f, form, axis, said)));
    strides.push_back(value_of(to, product(to, x, 3 + d, spatial + 2)));
  }
  const VarId flat = f.taken(reshaped(to, x, {extent_at(to, x, 0), channels, product(to, x, 2, spatial + 2)}));
  Sampler sampler(to, f, flat, list_of(to, {n, channels, points}), axes, strides);
  std::vector<Extent> extents{n, channels};
  for (int axis = 1; axis <= spatial; ++axis) extents.push_back(extent_at(to, grid, axis));
  to.give(node, "identity", {f.cast(reshaped(to, sampler.total(), extents), dtype)});
}

// ---- AffineGrid: theta [N, r, r + 1], size (N, C, D1 …); the first number of a place is that along the last axis

void affine_grid(Importer& to, const Node& node, const char*) {
  const VarId theta = to.in(node, 0);
  const Formula f(to, DType::f64);
  const VarId size = list_input(to, node, 1);
  std::int64_t spatial = to.rank(theta) == 3 ? (*to.type(theta).shape)[1] : DDim::unknown;
  if (spatial == DDim::unknown && to.rank(theta) == 3) spatial = (*to.type(size).shape)[0] - 2;  // size: N, C and the extents of the grid
  if (spatial != 2 && spatial != 3) throw UnsupportedError("expected theta [N, 2, 3] or [N, 3, 4], found " + to.type(theta).to_string());
  const bool corners = node.flag("align_corners", false);
  const VarId dims = to.emit1("slice", {size}, {{"starts", Ints{2}}, {"ends", Ints{2 + spatial}}, {"axes", Ints{0}}});
  std::vector<VarId> parts;
  for (std::int64_t d = spatial - 1; d >= 0; --d) {
    const VarId count = to.emit1("gather", {dims, number(to, d)}, {{"axis", std::int64_t{0}}});
    const VarId n = f.taken(count), i = f.taken(count_to(to, count));
    const VarId at = corners ? f.over(f.times(i, 2.0), f.minus(n, 1.0)) : f.over(f.plus(f.times(i, 2.0), 1.0), n);
    Ints shape(static_cast<std::size_t>(spatial), 1);
    shape[static_cast<std::size_t>(d)] = -1;
    parts.push_back(f.reshaped(to.emit1("expand", {f.reshaped(f.minus(at, 1.0), shape), dims}), {-1, 1}));
  }
  parts.push_back(f.plus(f.times(parts.back(), 0.0), 1.0));
  const VarId points = to.emit1("concat", parts, {{"axis", std::int64_t{1}}});
  const VarId made = f.op("matmul", points, to.emit1("transpose", {f.taken(theta)}, {{"perm", Ints{0, 2, 1}}}));
  const VarId first = to.emit1("shape", {theta}, {{"start", std::int64_t{0}}, {"end", std::int64_t{1}}});
  const VarId shape = to.emit1("concat", {first, dims, to.literal(Ints{spatial})}, {{"axis", std::int64_t{0}}});
  const VarId grid = with_rank(to, to.emit1("reshape_to", {made, shape}, {{"allowzero", true}}), spatial + 2);
  to.give(node, "cast", {grid}, {{"to", to.type(theta).dtype}});
}

// ---- CenterCropPad

void center_crop_pad(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0), wanted = list_input(to, node, 1);
  const int rank = to.rank(x);
  Ints axes;
  for (const std::int64_t axis : node.integers("axes").value_or(Ints{})) axes.push_back(axis_of("attribute axes", axis, rank));
  if (!node.has_attribute("axes"))
    for (int axis = 0; axis < rank; ++axis) axes.push_back(axis);
  const Attributes first{{"axis", std::int64_t{0}}};
  const VarId found = to.emit1("gather", {to.emit1("shape", {x}), to.literal(axes)}, first);
  const auto halves = [&](VarId more, VarId less) {
    const VarId total = to.emit1("maximum", {to.emit1("sub", {more, less}), number(to, 0)});
    return std::pair{total, to.emit1("div", {total, number(to, 2)})};
  };
  const auto [cut, begin] = halves(found, wanted);
  const VarId end = to.emit1("add", {begin, to.emit1("minimum", {found, wanted})});
  const VarId inner = to.emit1("slice_by", {x, begin, end, to.literal(axes)});
  const auto [lack, before] = halves(wanted, found);
  const auto spread = [&](VarId pads) {
    return to.emit1("scatter_elements", {to.literal(Ints(static_cast<std::size_t>(rank), 0)), to.literal(axes), pads}, first);
  };
  const VarId front = spread(before), behind = spread(to.emit1("sub", {lack, before}));
  to.give(node, "pad_by", {inner, to.emit1("concat", {front, behind}, first)}, {{"mode", std::string("constant")}});
}

constexpr Rule grid_table[] = {
    {"GridSample", grid_sample},
    {"AffineGrid", affine_grid},
    {"CenterCropPad", center_crop_pad},
};

}  // namespace

std::span<const Rule> grid_rules() { return grid_table; }

}  // namespace millrace::importing
