// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/models/import/with_onnx/axes.h>
#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// Resize and Upsample: axis by axis, each output a sum of its neighbours, whose places and weights a run computes in f64. Sums of floats are of f32 but where
/// x is f64.
namespace millrace::importing {
namespace {

struct Form {
  std::string mode;         ///< nearest, linear, cubic
  std::string coordinates;  ///< how the place of an output is one of the input
  std::string nearest;
  double cubic = -0.75;
  double outside = 0;  ///< of tf_crop_and_resize
  bool exclude = false;
  bool antialias = false;
};

/// One axis, f64 scalars: the factor, and its extents; where the crop begins and ends.
struct Axis {
  int axis;
  VarId scale, in, out;  ///< `out` an i64 scalar
  VarId real_out;        ///< in · scale, not cut to a whole number
  VarId begin = no_var, end = no_var;
  bool by_size = false;  ///< whether the factor is `out` / `in`
};

VarId at(Importer& to, VarId list, std::int64_t i) { return to.emit1("gather", {list, number(to, i)}, {{"axis", std::int64_t{0}}}); }

/// (y + shift) / scale − back of the nearest mode. By sizes the quotient is one of whole numbers, whose ties are exact. Scales are f32, and so is the quotient, as
/// ONNX Runtime and PyTorch have it: 3 / 0.6f is 5.
VarId nearest_quotient(const Formula& f, const Axis& axis, VarId y, double shift, double back) {
  if (axis.by_size) return f.minus(f.over(f.times(f.plus(y, shift), axis.in), f.taken(axis.out)), back);
  const Formula narrow = f.in(DType::f32);
  return f.taken(narrow.minus(narrow.over(narrow.plus(narrow.taken(y), shift), narrow.taken(axis.scale)), back));
}

/// in / 2 · (1 − out / (in · scale)) + (y + 0.5) / scale − 0.5 in f32, likewise.
VarId nearest_symmetric(const Formula& f, const Axis& axis, VarId y) {
  const Formula narrow = f.in(DType::f32);
  const VarId in = narrow.taken(axis.in), scale = narrow.taken(axis.scale);
  const VarId share = narrow.over(narrow.taken(axis.out), narrow.times(scale, in));
  const VarId offset = narrow.times(narrow.over(in, 2.0), narrow.minus(narrow.number(1), share));
  const VarId quotient = narrow.over(narrow.plus(narrow.taken(y), 0.5), scale);
  return f.taken(narrow.minus(narrow.plus(offset, quotient), 0.5));
}

/// Where the outputs lie in the input: [out].
VarId places(const Formula& f, const Form& form, const Axis& axis, VarId out_numbers) {
  const VarId y = f.taken(out_numbers);
  const VarId real_out = axis.real_out;
  const VarId alone = f.op("equal", real_out, 1.0);
  const VarId last = f.minus(axis.in, 1.0);
  const auto spread = [&](VarId reach) { return f.over(f.times(y, reach), f.where(alone, f.number(1), f.minus(real_out, 1.0))); };
  const bool nearest = form.mode == "nearest";
  const auto quotient = [&](double shift) {
    if (nearest) return nearest_quotient(f, axis, y, shift, shift);
    return shift == 0 ? f.over(y, axis.scale) : f.minus(f.over(f.plus(y, shift), axis.scale), shift);
  };
  if (form.coordinates == "asymmetric") return quotient(0);
  if (form.coordinates == "align_corners") return f.where(alone, f.times(y, 0.0), spread(last));
  if (form.coordinates == "pytorch_half_pixel") return f.where(f.op("equal", f.taken(axis.out), 1.0), f.times(y, 0.0), quotient(0.5));
  if (form.coordinates == "tf_half_pixel_for_nn") {  // of opsets 11 and 12; an axis that keeps its extent is no resized one
    const VarId moved = nearest ? nearest_quotient(f, axis, y, 0.5, 0) : f.over(f.plus(y, 0.5), axis.scale);
    return f.where(f.op("equal", f.taken(axis.scale), 1.0), y, moved);
  }
  if (form.coordinates == "half_pixel_symmetric") {
    if (nearest && !axis.by_size) return nearest_symmetric(f, axis, y);
    // in / 2 · (1 − out / real_out) more than half_pixel, by one quotient: ties stay where they are.
    const VarId apart = f.times(f.minus(real_out, f.taken(axis.out)), 0.5);
    return f.minus(f.over(f.plus(f.plus(y, 0.5), apart), axis.scale), 0.5);
  }
  if (form.coordinates != "tf_crop_and_resize") return quotient(0.5);
  const VarId size = f.times(f.minus(axis.end, axis.begin), last);
  const VarId cropped = f.where(alone, f.plus(f.times(y, 0.0), f.times(size, 0.5)), spread(size));
  return f.plus(cropped, f.times(axis.begin, last));
}

/// The weight of what lies `distance` away.
VarId weight(const Formula& f, const Form& form, VarId distance) {
  const VarId d = f.op("abs", distance);
  if (form.mode == "linear") return f.limited(f.minus(f.number(1), d), 0, 1);
  const double a = form.cubic;
  const auto cubic = [&](double c3, double c2, double c1, double c0) {
    return f.plus(f.times(f.plus(f.times(f.plus(f.times(d, c3), c2), d), c1), d), c0);
  };
  const VarId far = f.where(f.op("less", d, 2.0), cubic(a, -5 * a, 8 * a, -4 * a), f.number(0));
  return f.where(f.op("less_equal", d, 1.0), cubic(a + 2, -(a + 3), 0, 1), far);
}

VarId nearest_place(const Formula& f, const Form& form, VarId x) {
  if (form.nearest == "floor") return f.op("floor", x);
  if (form.nearest == "ceil") return f.op("ceil", x);
  if (form.nearest == "round_prefer_ceil") return f.op("floor", f.plus(x, 0.5));
  return f.op("ceil", f.plus(x, -0.5));
}

/// `list` [out, …] as it broadcasts over x with `out` at `axis`.
VarId along(Importer& to, VarId list, int axis, int rank, int more) {
  Ints axes;
  for (int i = 0; i < axis; ++i) axes.push_back(i);
  for (int i = 0; i < rank - axis - 1; ++i) axes.push_back(axis + 1 + more + i);
  return axes.empty() ? list : to.emit1("unsqueeze", {list}, {{"axes", axes}});
}

VarId resized(Importer& to, const Form& form, const Axis& axis, VarId x) {
  const Formula f(to, DType::f64), sums(to, to.type(x).dtype);
  const int rank = to.rank(x);
  const VarId numbers = to.emit1("range", {number(to, 0), axis.out, number(to, 1)});
  const VarId place = places(f, form, axis, numbers);
  const VarId last = f.minus(axis.in, 1.0);
  const auto inside = [&](VarId all) { return f.op("maximum", f.op("minimum", all, last), f.number(0)); };
  const auto picked = [&](VarId all) {
    return to.emit1("gather", {x, to.emit1("cast", {inside(all)}, {{"to", DType::i64}})}, {{"axis", std::int64_t{axis.axis}}});
  };
  VarId made = no_var;
  if (form.mode == "nearest") {
    made = picked(nearest_place(f, form, place));
  } else {
    // The neighbour below is below even where the place is a whole number.
    const VarId below = f.minus(f.op("ceil", place), 1.0);
    const VarId stretch = form.antialias ? f.op("minimum", axis.scale, 1.0) : f.number(1);
    const double reach = form.mode == "linear" ? 1 : 2;
    const VarId first = to.emit1("cast", {f.plus(f.op("floor", f.op("div", f.number(-reach), stretch)), 1.0)}, {{"to", DType::i64}});
    const VarId steps = f.taken(to.emit1("range", {first, to.emit1("sub", {number(to, 2), first}), number(to, 1)}));
    const VarId neighbours = f.plus(f.unsqueezed(below, {1}), steps);  // [out, n]
    VarId weights = weight(f, form, f.times(f.minus(neighbours, f.unsqueezed(place, {1})), stretch));
    if (form.exclude) {
      const VarId there = f.op("logical_and", f.op("greater_equal", neighbours, 0.0), f.op("less_equal", neighbours, last));
      weights = f.where(there, weights, f.number(0));
    }
    if (form.exclude || form.antialias) weights = f.over(weights, f.reduced("sum", weights, {1}, true));
    const VarId factors = sums.taken(weights);
    if (form.antialias) {  // as many neighbours as the scale wants
      made = sums.reduced("sum", sums.times(picked(neighbours), along(to, factors, axis.axis, rank, 1)), {axis.axis + 1}, false);
    } else {
      const auto of = [&](VarId all, std::int64_t i) {
        return to.emit1("squeeze", {to.emit1("slice", {all}, {{"starts", Ints{i}}, {"ends", Ints{i + 1}}, {"axes", Ints{1}}})},
                        {{"axes", Ints{1}}});
      };
      for (std::int64_t i = 0; i < 2 * static_cast<std::int64_t>(reach); ++i) {
        const VarId term = sums.times(picked(of(neighbours, i)), along(to, of(factors, i), axis.axis, rank, 0));
        made = i == 0 ? term : sums.plus(made, term);
      }
    }
  }
  if (form.coordinates != "tf_crop_and_resize") return made;
  const VarId there = f.op("logical_and", f.op("greater_equal", place, 0.0), f.op("less_equal", place, last));
  return sums.where(along(to, there, axis.axis, rank, 0), made, sums.number(form.outside));
}

/// Lengths by `scales`, not cut: f64 that holds products of f32, as in ONNX Runtime, where 5 · 1.4 is 7.
VarId scaled_lengths(const Formula& f, VarId in, VarId scales) {
  return f.taken(f.times(f.cast(in, DType::f32), f.cast(scales, DType::f32)));
}

/// The inputs that give each axis a factor or a size.
struct Sizes {
  std::vector<int> axes;
  std::vector<bool> kept;     ///< whether an axis is known to stay as it is, of each of them
  VarId scales = no_var;      ///< f64 [axes]
  VarId sizes = no_var;       ///< i64 [axes]
  VarId roi = no_var;         ///< f64 [2·axes]
  std::vector<double> known;  ///< the scales, or else the sizes, where the file holds them
};

/// The numbers of a list that the file holds, one for each axis; none of another list.
std::vector<double> numbers_of(const Tensor* list, std::size_t axes) {
  std::vector<double> made;
  if (list == nullptr || list->rank() != 1 || std::cmp_not_equal(list->elements(), axes)) return made;
  for (std::int64_t i = 0; i < list->elements(); ++i) made.push_back(list->rows(i, i + 1).item());
  return made;
}

/// An axis whose extent and whose scale or size the file says, by literals: the extents behind it are known then, and the places and weights are computed once.
std::optional<Axis> known_axis(Importer& to, const Formula& f, const Sizes& sizes, VarId x, std::size_t i) {
  constexpr double most = 0x1p31;
  const std::int64_t extent = (*to.type(x).shape)[sizes.axes[i]];
  if (sizes.known.empty() || extent < 1) return std::nullopt;
  const auto in = static_cast<double>(extent);
  const bool by_size = sizes.scales == no_var;
  const double scale = by_size ? sizes.known[i] / in : sizes.known[i];
  // Lengths by scales are products of f32, as `scaled_lengths` has them.
  const double real = by_size ? in * scale : static_cast<double>(static_cast<float>(in) * static_cast<float>(scale));
  const double out = by_size ? sizes.known[i] : std::floor(real);
  if (!(out >= 1 && out < most)) return std::nullopt;
  Axis axis{sizes.axes[i], f.number(scale), f.number(in), number(to, static_cast<std::int64_t>(out)), f.number(real)};
  axis.by_size = by_size;
  return axis;
}

bool given(Importer& to, const Node& node, std::size_t input) {
  if (!node.has(input)) return false;
  const VarType& type = to.type(to.in(node, input));
  return !(type.shape && type.rank() == 1 && (*type.shape)[0] == 0);
}

/// Sizes that keep the aspect: all axes by the least of their factors, or the greatest.
void keep_aspect(const Formula& f, const std::string& policy, VarId in, Sizes& sizes, Importer& to) {
  const VarId factor = f.reduced(policy == "not_larger" ? "min" : "max", f.over(f.taken(sizes.sizes), in), {0}, true);
  sizes.scales = f.plus(f.times(in, 0.0), factor);
  sizes.sizes = to.emit1("cast", {f.op("floor", f.plus(f.times(in, factor), 0.5))}, {{"to", DType::i64}});
}

VarId resized(Importer& to, const Form& form, Sizes sizes, const std::string& policy, VarId x) {
  const Formula f(to, DType::f64);
  const DType dtype = to.type(x).dtype;
  VarId made = x;
  if (form.mode != "nearest" || form.coordinates == "tf_crop_and_resize")
    made = Formula(to, is_floating(dtype) ? computed_in(dtype) : DType::f64).taken(x);
  Ints axes(sizes.axes.begin(), sizes.axes.end());
  const VarId extents = to.emit1("gather", {to.emit1("shape", {x}), to.literal(axes)}, {{"axis", std::int64_t{0}}});
  const VarId in = f.taken(extents);
  if (sizes.sizes != no_var && policy != "stretch") keep_aspect(f, policy, in, sizes, to);
  const VarId scales = sizes.scales != no_var ? sizes.scales : f.over(f.taken(sizes.sizes), in);
  const VarId reals = sizes.sizes != no_var ? f.times(in, scales) : scaled_lengths(f, in, scales);
  const VarId outs = sizes.sizes != no_var ? sizes.sizes : to.emit1("cast", {f.op("floor", reals)}, {{"to", DType::i64}});
  const bool stretched = sizes.sizes == no_var || policy == "stretch";  // else a run finds one scale for all axes
  for (std::size_t i = sizes.axes.size(); i-- > 0;) {  // rows of the last axis come apart into single elements: while there are few of them
    if (sizes.kept[i]) continue;
    const auto k = static_cast<std::int64_t>(i);
    std::optional<Axis> axis = stretched ? known_axis(to, f, sizes, x, i) : std::nullopt;
    if (!axis) {
      axis = Axis{sizes.axes[i], at(to, scales, k), at(to, in, k), at(to, outs, k), at(to, reals, k)};
      axis->by_size = sizes.scales == no_var;
    }
    if (sizes.roi != no_var) {
      axis->begin = at(to, sizes.roi, k);
      axis->end = at(to, sizes.roi, k + static_cast<std::int64_t>(sizes.axes.size()));
    }
    made = resized(to, form, *axis, made);
  }
  return to.type(made).dtype == dtype ? made : to.emit1("cast", {made}, {{"to", dtype}});
}

/// ProgramError for a scale, among those that the file holds, that makes no picture.
void check_scales(const Tensor* scales) {
  for (std::int64_t i = 0; scales != nullptr && scales->rank() == 1 && i < scales->elements(); ++i) {
    const double scale = scales->rows(i, i + 1).item();
    if (!(scale > 0) || !std::isfinite(scale))
      throw ProgramError("expected scales that are finite and above 0, found " + std::to_string(scale));
  }
}

/// The axes whose scale is 1, or whose size is the extent, as far as the file says. Each place is one of the input then.
std::vector<bool> kept_axes(Importer& to, const Form& form, const Sizes& sizes, VarId x, const Tensor* scales, const Tensor* lengths) {
  std::vector<bool> kept(sizes.axes.size(), false);
  if (form.coordinates == "tf_crop_and_resize" || form.coordinates == "tf_half_pixel_for_nn") return kept;
  const Tensor* const known = scales != nullptr ? scales : lengths;
  if (known == nullptr || known->rank() != 1 || known->elements() != std::ssize(kept)) return kept;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto k = static_cast<std::int64_t>(i);
    const double unchanged = scales != nullptr ? 1.0 : static_cast<double>((*to.type(x).shape)[sizes.axes[i]]);
    kept[i] = known->rows(k, k + 1).item() == unchanged;
  }
  return kept;
}

void resize(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const Formula f(to, DType::f64);
  const bool old = to.opset() < 11;  // X, scales; places as in Upsample
  Form form;
  form.mode = node.word("mode", "nearest", {"nearest", "linear", "cubic"});
  form.coordinates = old ? "asymmetric"
                         : node.word("coordinate_transformation_mode", "half_pixel",
                                     {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
                                      "tf_crop_and_resize", "tf_half_pixel_for_nn"});
  form.nearest =
      old ? "floor" : node.word("nearest_mode", "round_prefer_floor", {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"});
  form.cubic = node.real("cubic_coeff_a", -0.75);
  form.outside = node.real("extrapolation_value", 0);
  form.exclude = node.flag("exclude_outside", false);
  form.antialias = node.flag("antialias", false) && form.mode != "nearest";
  const std::string policy = node.word("keep_aspect_ratio_policy", "stretch", {"stretch", "not_larger", "not_smaller"});
  Sizes sizes;
  const Ints all = node.integers("axes").value_or(Ints{});
  if (all.empty())
    for (int axis = 0; axis < to.rank(x); ++axis) sizes.axes.push_back(axis);
  for (const std::int64_t axis : all) sizes.axes.push_back(axis_of("attribute axes", axis, to.rank(x)));
  const std::size_t scales = old ? 1 : 2;
  if (given(to, node, scales)) check_scales(to.known(node, scales));
  if (given(to, node, scales))
    sizes.scales = f.taken(to.in(node, scales));
  else if (!old && given(to, node, 3))
    sizes.sizes = list_input(to, node, 3);
  else
    throw ProgramError("expected scales or sizes, found neither");
  if (form.coordinates == "tf_crop_and_resize") {
    if (!given(to, node, 1)) throw ProgramError("input roi: expected one with tf_crop_and_resize, found none");
    sizes.roi = f.taken(to.in(node, 1));
  }
  const bool by_scales = sizes.scales != no_var;
  sizes.known = numbers_of(to.known(node, by_scales ? scales : 3), sizes.axes.size());
  sizes.kept = kept_axes(to, form, sizes, x, by_scales ? to.known(node, scales) : nullptr,
                         by_scales || policy != "stretch" ? nullptr : to.known(node, 3));
  to.give(node, "identity", {resized(to, form, sizes, policy, x)});
}

/// Resize as it was called up to opset 9: scales were an attribute up to 8.
void upsample(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  Form form;
  form.mode = node.word("mode", "nearest", {"nearest", "linear"});
  form.coordinates = "asymmetric";
  form.nearest = "floor";
  Sizes sizes;
  for (int axis = 0; axis < to.rank(x); ++axis) sizes.axes.push_back(axis);
  if (to.opset() >= 9) {
    check_scales(to.known(node, 1));
    sizes.scales = Formula(to, DType::f64).taken(to.in(node, 1));
    sizes.kept = kept_axes(to, form, sizes, x, to.known(node, 1), nullptr);
    sizes.known = numbers_of(to.known(node, 1), sizes.axes.size());
  } else {
    const std::vector<float> scales = node.reals("scales");
    if (std::cmp_not_equal(scales.size(), to.rank(x)))
      throw ParseError("attribute scales: expected one for each axis, found " + std::to_string(scales.size()));
    const Tensor numbers = Tensor::from(std::vector<double>(scales.begin(), scales.end()), DDim{to.rank(x)});
    check_scales(&numbers);
    sizes.scales = to.literal(numbers);
    sizes.kept = kept_axes(to, form, sizes, x, &numbers, nullptr);
    sizes.known.assign(scales.begin(), scales.end());
  }
  to.give(node, "identity", {resized(to, form, sizes, "stretch", x)});
}

constexpr Rule image_table[] = {
    {"Resize", resize},
    {"Upsample", upsample},
};

}  // namespace

std::span<const Rule> image_rules() { return image_table; }

}  // namespace millrace::importing
