// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <vector>

#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>
#include <millrace/runtime/program/op_registry.h>

/// The reverse directions: transposed convolutions, channels that become places, and sums over neighbouring channels.
namespace millrace::importing {
namespace {

// ---- ConvTranspose: a convolution by the kernel turned; where it strides, one for each phase of the places between two elements of x

constexpr std::int64_t most_places = std::int64_t{1} << 30;

/// One axis of a transposed convolution.
struct Spread {
  Window window;            ///< kernel, stride, dilation
  std::int64_t before = 0;  ///< elements that are cut off
  std::int64_t after = 0;
  std::int64_t more = 0;    ///< output_padding
  std::int64_t asked = -1;  ///< elements of an output whose input a run alone knows: they are cut out of all that there are
};

/// ONNX Runtime's halves of an odd number: the greater one behind for SAME_UPPER, else in front. Less than nothing is added behind.
void share(Spread& spread, std::int64_t total, bool upper) {
  spread.before = total < 0 ? 0 : upper ? total / 2 : total - total / 2;
  spread.after = total - spread.before;
}

std::vector<Spread> spreads_of(Importer& to, const Node& node, VarId x, const Ints& kernel) {
  const std::string automatic = node.text("auto_pad", "NOTSET");
  const std::vector<Window> windows = windows_of(node, static_cast<int>(kernel.size()), kernel);
  const std::optional<Ints> pads = node.integers("pads");
  const std::optional<Ints> asked = node.integers("output_shape");
  const Ints more = node.integers("output_padding").value_or(Ints(kernel.size(), 0));
  if (more.size() != kernel.size() || (asked && asked->size() < kernel.size()))
    throw ProgramError("expected numbers for " + std::to_string(kernel.size()) + " axes in output_padding and output_shape");
  std::vector<Spread> spreads(kernel.size());
  for (std::size_t i = 0; i < kernel.size(); ++i) {
    Spread& spread = spreads[i];
    spread.window = windows[i];
    const Window& window = windows[i];
    spread.more = more[i];
    if (more[i] < 0 || more[i] >= std::max(window.stride, window.dilation))
      throw ProgramError("attribute output_padding: expected 0 or more and less than stride or dilation, found " + std::to_string(more[i]));
    const std::int64_t beyond = spread.more + window.span();
    if (asked) {
      const std::int64_t out = (*asked)[asked->size() - kernel.size() + i];
      if (out < 1 || out > most_places)
        throw ProgramError("attribute output_shape: expected 1 to 1073741824, found " + std::to_string(out));
      const std::int64_t length = extent_at(to, x, static_cast<int>(i) + 2).known;
      if (length > most_places)
        throw UnsupportedError("attribute output_shape: expected an input of at most 1073741824 places, found " + to.type(x).to_string());
      if (length < 0)
        spread.asked = out;
      else
        share(spread, window.stride * (length - 1) + beyond - out, automatic == "SAME_UPPER");
    } else if (automatic.starts_with("SAME")) {
      share(spread, std::max<std::int64_t>(0, beyond - window.stride), automatic == "SAME_UPPER");
    } else if (automatic == "NOTSET" && pads) {
      spread.before = window.before;
      spread.after = window.after;
    }
  }
  return spreads;
}

/// Adds zeros at both ends of an axis, or cuts elements off.
VarId fitted(Importer& to, VarId x, int axis, std::int64_t before, std::int64_t after) {
  const auto rank = static_cast<std::size_t>(to.rank(x));
  Ints pads(2 * rank, 0);
  pads[static_cast<std::size_t>(axis)] = std::max<std::int64_t>(0, before);
  pads[static_cast<std::size_t>(axis) + rank] = std::max<std::int64_t>(0, after);
  if (before > 0 || after > 0) x = to.emit1("pad", {x}, {{"pads", pads}, {"mode", std::string("constant")}});
  if (before >= 0 && after >= 0) return x;
  const std::int64_t end = after < 0 ? after : std::numeric_limits<std::int64_t>::max();
  return to.emit1("slice", {x}, {{"starts", Ints{std::max<std::int64_t>(0, -before)}}, {"ends", Ints{end}}, {"axes", Ints{axis}}});
}

/// Extents that `output_shape` asks for along the axes that a run alone knows: the numbers of `share`, computed.
class OpenShape {
 public:
  OpenShape(Importer& to, const Node& node, const std::vector<Spread>& spreads)
      : to_(to), upper_(node.text("auto_pad", "") == "SAME_UPPER") {
    for (std::size_t i = 0; i < spreads.size(); ++i)
      if (spreads[i].asked >= 0) axes_.push_back(static_cast<int>(i) + 2), spreads_.push_back(spreads[i]);
  }

  /// x with zeros behind, where the output asks for more than there would be.
  VarId widened(VarId x) {
    std::vector<VarId> pads(2 * static_cast<std::size_t>(to_.rank(x)), to_.literal(Ints{0}));
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      const Spread& spread = spreads_[i];
      const std::int64_t stride = spread.window.stride;
      const VarId all = with("add", with("mul", with("sub", extent_of(to_, x, axes_[i]), 1), stride), spread.more + spread.window.span());
      const VarId beyond = with("sub", all, spread.asked);
      const VarId lack = with("maximum", to_.emit1("neg", {beyond}), 0), cut = with("maximum", beyond, 0);
      starts_.push_back(as_list(to_, with("div", upper_ ? cut : with("add", cut, 1), 2)));
      pads[pads.size() / 2 + static_cast<std::size_t>(axes_[i])] = as_list(to_, with("div", with("add", lack, stride - 1), stride));
    }
    if (axes_.empty()) return x;
    return told(to_.emit1("pad_by", {x, joined(pads)}, {{"mode", std::string("constant")}}), *to_.type(x).shape);
  }
  VarId cut(VarId x) {
    if (axes_.empty()) return x;
    Ints asked;
    DDim shape = *to_.type(x).shape;
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      asked.push_back(spreads_[i].asked);
      shape[axes_[i]] = spreads_[i].asked;
    }
    const VarId starts = joined(starts_);
    const VarId ends = to_.emit1("add", {starts, to_.literal(asked)});
    return told(to_.emit1("slice_by", {x, starts, ends, to_.literal(Ints(axes_.begin(), axes_.end()))}), shape);
  }

 private:
  VarId with(const char* op, VarId a, std::int64_t b) { return to_.emit1(op, {a, number(to_, b)}); }
  /// `x` with the extents that are known, which its type does not say.
  VarId told(VarId x, const DDim& extents) {
    Ints shape(extents.begin(), extents.end());
    std::replace(shape.begin(), shape.end(), std::int64_t{-1}, std::int64_t{0});  // copied
    return to_.emit1("reshape", {x}, {{"shape", shape}});
  }
  VarId joined(const std::vector<VarId>& lists) { return to_.emit1("concat", lists, {{"axis", std::int64_t{0}}}); }

  Importer& to_;
  bool upper_;
  std::vector<int> axes_;
  std::vector<Spread> spreads_;
  std::vector<VarId> starts_;
};

/// `stride` − 1 zeros behind each element.
VarId spread_out(Importer& to, VarId x, int axis, std::int64_t stride) {
  if (stride == 1) return x;
  std::vector<Extent> extents;
  for (int i = 0; i < to.rank(x); ++i) extents.push_back(extent_at(to, x, i));
  extents[static_cast<std::size_t>(axis)] = times(to, extents[static_cast<std::size_t>(axis)], {stride, no_var});
  const VarId apart = to.emit1("unsqueeze", {x}, {{"axes", Ints{axis + 1}}});
  return reshaped(to, fitted(to, apart, axis + 1, 0, stride - 1), extents);
}

/// [C, M/group, k…] → [M, C/group, k…], each kernel turned.
VarId turned_kernel(Importer& to, VarId w, std::int64_t group) {
  const DDim dims = *to.type(w).shape;
  for (int axis = 2; axis < dims.rank(); ++axis) w = to.emit1("reverse", {w}, {{"axis", std::int64_t{axis}}});
  Ints apart{group, dims[0] / group, dims[1]}, perm{0, 2, 1}, joined{dims[1] * group, dims[0] / group};
  for (int axis = 2; axis < dims.rank(); ++axis) {
    apart.push_back(dims[axis]);
    perm.push_back(axis + 1);
    joined.push_back(dims[axis]);
  }
  const VarId moved = to.emit1("transpose", {to.emit1("reshape", {w}, {{"shape", apart}})}, {{"perm", perm}});
  return to.emit1("reshape", {moved}, {{"shape", joined}});
}

/// Outputs that are `stride` apart see the same taps: with o = q·stride + r, out[o] = Σ x[q − j]·w[r + j·stride] over j. So each phase r is a convolution of x by
/// every stride-th tap, and all of them are one with `stride` times the channels, whose results are put between one another.
class Phases {
 public:
  Phases(Importer& to, const std::vector<Spread>& spreads, std::int64_t group) : to_(to), spreads_(spreads), group_(group) {
    for (const Spread& spread : spreads) {
      const std::int64_t stride = spread.window.stride, least = spread.window.kernel + spread.more - spread.after;
      const std::int64_t taps = std::max((spread.window.kernel + stride - 1) / stride, (least + stride - 1) / stride);
      taps_.push_back(taps);
      // Places of all phases that are cut off are not made.
      const std::int64_t behind = taps * stride - spread.window.kernel + spread.after - spread.more;
      ends_.push_back({std::min(spread.before / stride, taps - 1), std::min(behind / stride, taps - 1), behind});
      all_ *= stride;
    }
  }

  VarId run(VarId x, VarId w, VarId bias) {
    const DDim dims = *to_.type(w).shape;
    const std::int64_t units = dims[1] * group_;
    std::vector<Window> windows;
    for (std::size_t i = 0; i < taps_.size(); ++i)
      windows.push_back({.kernel = taps_[i], .before = taps_[i] - 1 - ends_[i].first, .after = taps_[i] - 1 - ends_[i].last});
    const VarId made = convolved(to_, x, weights(w, dims), bias == no_var ? no_var : repeated(bias, units), group_, windows);
    return cut(between(made, units));
  }

 private:
  std::int64_t stride(std::size_t axis) const { return spreads_[axis].window.stride; }

  /// [C, M/group, k…] → [M·strides, C/group, taps…], in each group phase by phase: units of a phase have the same taps (find_taps in kernels/conv.h).
  VarId weights(VarId w, const DDim& dims) {
    Ints apart{group_, dims[0] / group_, dims[1]}, perm{0}, taps, joined{dims[1] * group_ * all_, dims[0] / group_};
    for (std::size_t i = 0; i < taps_.size(); ++i) {
      const int axis = static_cast<int>(i) + 2;
      w = fitted(to_, w, axis, 0, taps_[i] * stride(i) - dims[axis]);
      perm.push_back(std::ssize(apart) + 1);
      taps.push_back(std::ssize(apart));
      apart.push_back(taps_[i]);
      apart.push_back(stride(i));
      joined.push_back(taps_[i]);
    }
    w = to_.emit1("reshape", {w}, {{"shape", apart}});
    for (const std::int64_t axis : taps) w = to_.emit1("reverse", {w}, {{"axis", axis}});
    perm.insert(perm.end(), {2, 1});
    perm.insert(perm.end(), taps.begin(), taps.end());
    return to_.emit1("reshape", {to_.emit1("transpose", {w}, {{"perm", perm}})}, {{"shape", joined}});
  }
  /// [M] → [M·strides], as the weights lie
  VarId repeated(VarId bias, std::int64_t units) {
    const VarId rows = to_.emit1("reshape", {bias}, {{"shape", Ints{group_, 1, units / group_}}});
    return to_.emit1("reshape", {to_.emit1("expand", {rows, to_.literal(Ints{group_, all_, units / group_})})},
                     {{"shape", Ints{units * all_}}});
  }
  /// [N, M·strides, q…], as the weights lie, → [N, M, q·stride…]
  VarId between(VarId x, std::int64_t units) {
    std::vector<Extent> apart{extent_at(to_, x, 0)}, joined{extent_at(to_, x, 0), {units, no_var}};
    Ints perm{0};
    if (group_ > 1) {
      perm.push_back(1);
      apart.push_back({group_, no_var});
    }
    const auto strided = static_cast<std::int64_t>(
        std::count_if(spreads_.begin(), spreads_.end(), [](const Spread& spread) { return spread.window.stride > 1; }));
    std::int64_t phase = std::ssize(apart);
    const std::int64_t unit = phase + strided;  // of a group
    perm.push_back(unit);
    for (std::size_t i = 0; i < taps_.size(); ++i) {
      const Extent places = extent_at(to_, x, static_cast<int>(i) + 2);
      joined.push_back(times(to_, places, {stride(i), no_var}));
      perm.push_back(unit + 1 + static_cast<std::int64_t>(i));
      if (stride(i) == 1) continue;
      apart.push_back({stride(i), no_var});
      perm.push_back(phase++);
    }
    apart.push_back({units / group_, no_var});
    for (std::size_t i = 0; i < taps_.size(); ++i) apart.push_back(extent_at(to_, x, static_cast<int>(i) + 2));
    return reshaped(to_, to_.emit1("transpose", {reshaped(to_, x, apart)}, {{"perm", perm}}), joined);
  }
  VarId cut(VarId x) {
    for (std::size_t i = 0; i < taps_.size(); ++i) {
      const Ends& ends = ends_[i];
      x = fitted(to_, x, static_cast<int>(i) + 2, ends.first * stride(i) - spreads_[i].before, ends.last * stride(i) - ends.behind);
    }
    return x;
  }

  Importer& to_;
  const std::vector<Spread>& spreads_;
  std::int64_t group_;
  std::int64_t all_ = 1;  // phases
  /// Places of a phase that are not made, at both ends; and the elements of all phases that are cut off behind.
  struct Ends {
    std::int64_t first, last, behind;
  };
  std::vector<std::int64_t> taps_;  // of a phase, along each axis
  std::vector<Ends> ends_;
};

/// Whether `var` is known before a run: held by the file, or made of such values alone, as dequantized and cast weights are, by a few ops.
bool is_known(Importer& to, VarId var) {
  constexpr std::size_t most = 64;
  std::vector<VarId> met{var};
  for (std::size_t i = 0; i < met.size(); ++i) {
    if (to.program().constant(met[i]) != nullptr) continue;
    const Op* const made = to.maker(met[i]);
    if (made == nullptr || met.size() > most || !to.program().registry().at(made->type).pure) return false;
    for (const VarId input : made->inputs)
      if (input != no_var && std::find(met.begin(), met.end(), input) == met.end()) met.push_back(input);
  }
  return true;
}

void conv_transpose(Importer& to, const Node& node, const char*) {
  const VarId w = to.in(node, 1);
  const VarType& weights = to.type(w);
  const std::int64_t group = node.integer("group", 1);
  if (weights.rank() < 3 || !weights.is_static())
    throw UnsupportedError("expected weights [C, M/group, k1, …] of known extents, found " + weights.to_string());
  const DDim dims = *weights.shape;
  if (group < 1 || group > dims[0] || dims[0] % group != 0)
    throw ProgramError("attribute group: expected a divisor of " + std::to_string(dims[0]) + ", found " + std::to_string(group));
  VarId x = to.in(node, 0);
  if (to.rank(x) != dims.rank()) throw ProgramError("expected x of the rank of the weights, found " + to.type(x).to_string());
  Ints kernel;
  for (int axis = 2; axis < dims.rank(); ++axis) kernel.push_back(dims[axis]);
  const std::vector<Spread> spreads = spreads_of(to, node, x, kernel);
  bool strides = false, dilates = false;
  for (std::size_t i = 0; i < spreads.size(); ++i) {
    if (spreads[i].window.kernel != kernel[i])
      throw ProgramError("attribute kernel_shape: expected " + std::to_string(kernel[i]) + " as in the weights, found " +
                         std::to_string(spreads[i].window.kernel));
    strides = strides || spreads[i].window.stride > 1;
    dilates = dilates || spreads[i].window.dilation > 1;
  }
  OpenShape open(to, node, spreads);
  x = open.widened(x);
  const bool known = is_known(to, w) && dims.rank() + static_cast<int>(spreads.size()) <= max_rank - 1;
  if (strides && !dilates && known) return to.bind(node, 0, open.cut(Phases(to, spreads, group).run(x, w, to.in_or_none(node, 2))));
  std::vector<Window> windows;
  for (std::size_t i = 0; i < spreads.size(); ++i) {
    const Spread& spread = spreads[i];
    const int axis = static_cast<int>(i) + 2;
    const std::int64_t reach = spread.window.span() - 1;
    x = spread_out(to, x, axis, spread.window.stride);
    x = fitted(to, x, axis, reach - spread.before, reach - spread.after + spread.more - (spread.window.stride - 1));
    windows.push_back({.kernel = kernel[i], .dilation = spread.window.dilation});
  }
  to.give(node, "identity", {open.cut(convolved(to, x, turned_kernel(to, w, group), to.in_or_none(node, 2), group, windows))});
}

// ---- places and channels

/// Extents of [N, C, H, W], of which C (for depth to space) must be known.
std::int64_t block_size(Importer& to, const Node& node, VarId x) {
  const std::int64_t block = node.integer("blocksize", 0);
  if (to.rank(x) != 4) throw ProgramError("expected [N, C, H, W], found " + to.type(x).to_string());
  if (block < 1 || block > 1 << 15) throw ProgramError("attribute blocksize: expected 1 to 32768, found " + std::to_string(block));
  return block;
}

void depth_to_space(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const std::int64_t block = block_size(to, node, x);
  const Extent n = extent_at(to, x, 0), c = divided(to, x, 1, block * block), h = extent_at(to, x, 2), w = extent_at(to, x, 3),
               b{block, no_var};
  const bool columns = node.word("mode", "DCR", {"DCR", "CRD"}) == "CRD";
  const VarId apart = reshaped(to, x, columns ? std::vector<Extent>{n, c, b, b, h, w} : std::vector<Extent>{n, b, b, c, h, w});
  const VarId moved = to.emit1("transpose", {apart}, {{"perm", columns ? Ints{0, 1, 4, 2, 5, 3} : Ints{0, 3, 4, 1, 5, 2}}});
  to.give(node, "identity", {reshaped(to, moved, {n, c, times(to, h, b), times(to, w, b)})});
}

void space_to_depth(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const std::int64_t block = block_size(to, node, x);
  const bool channels = node.word("mode", "DCR", {"DCR", "CRD"}) == "CRD";
  const Extent n = extent_at(to, x, 0), c = extent_at(to, x, 1), b{block, no_var}, h = divided(to, x, 2, block),
               w = divided(to, x, 3, block);
  const VarId apart = reshaped(to, x, {n, c, h, b, w, b});
  const VarId moved = to.emit1("transpose", {apart}, {{"perm", channels ? Ints{0, 1, 3, 5, 2, 4} : Ints{0, 3, 5, 1, 2, 4}}});
  to.give(node, "identity", {reshaped(to, moved, {n, times(to, c, {block * block, no_var}), h, w})});
}

/// x / (bias + α / size · Σ over `size` channels around of x²)^β
void local_response(Importer& to, const Node& node, const char*) {
  const DType dtype = to.type(to.in(node, 0)).dtype;
  const Formula f(to, computed_in(dtype));
  const VarId x = f.taken(to.in(node, 0));
  const std::int64_t size = node.integer("size", 1);
  if (size < 1 || size > 1 << 12) throw ProgramError("attribute size: expected 1 to 4096, found " + std::to_string(size));
  const Window around{.kernel = size, .before = (size - 1) / 2, .after = size / 2};
  const VarId sums = f.reduced("sum", unfold(to, f.times(x, x), 1, around, 0, 0), {2}, false);
  const VarId base = f.plus(f.times(sums, node.real("alpha", 1e-4f) / static_cast<double>(size)), node.real("bias", 1));
  to.give(node, "identity", {f.cast(f.over(x, f.op("pow", base, node.real("beta", 0.75))), dtype)});
}

constexpr Rule layout_table[] = {
    {"ConvTranspose", conv_transpose},
    {"DepthToSpace", depth_to_space},
    {"SpaceToDepth", space_to_depth},
    {"LRN", local_response},
};

}  // namespace

std::span<const Rule> layout_rules() { return layout_table; }

}  // namespace millrace::importing
