// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <string_view>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/quantized.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// Convolutions and pools. There is an op for windows along one axis, `conv1d`; more axes are taken apart into windows one after the other.
namespace millrace::importing {
namespace {

// ---- Conv

VarId conv_along_one(Importer& to, VarId x, VarId w, VarId bias, std::int64_t group, Window window, bool winograd) {
  const VarId ready = settled(to, x, 2, window, 0);
  Attributes attributes{
      {"group", group}, {"stride", window.stride}, {"dilation", window.dilation}, {"pads", Ints{window.before, window.after}}};
  if (winograd) attributes.set("winograd", true);
  return to.emit1("conv1d", {ready, w, bias}, attributes);
}

/// [N, H, C, K, rest…], the windows K of each place H along axis 2 of x [N, C, H, rest…].
VarId windows_by_place(Importer& to, VarId x, const Window& window) {
  const int rank = to.rank(x);
  Ints perm{0, 2, 1};
  for (int axis = 3; axis < rank; ++axis) perm.push_back(axis);
  // Slices of what was turned once are joined in large blocks.
  const VarId moved = to.emit1("transpose", {x}, {{"perm", perm}});
  const std::vector<VarId> slices = window_slices(to, moved, 1, window, 0, 0);
  if (!slices.empty()) {
    std::vector<VarId> apart;
    for (const VarId slice : slices) apart.push_back(to.emit1("unsqueeze", {slice}, {{"axes", Ints{3}}}));
    return apart.size() == 1 ? apart[0] : to.emit1("concat", apart, {{"axis", std::int64_t{3}}});
  }
  Ints behind{0, 1, 3, 2};
  for (int axis = 3; axis < rank; ++axis) behind.push_back(axis + 1);
  return to.emit1("transpose", {unfold(to, moved, 1, window, 0, 0)}, {{"perm", behind}});
}

/// The places H join the batch, the windows K the channels.
VarId joined_batch(Importer& to, VarId x) {
  std::vector<Extent> extents{product(to, x, 0, 2), product(to, x, 2, 4)};
  for (int axis = 4; axis < to.rank(x); ++axis) extents.push_back(extent_at(to, x, axis));
  return reshaped(to, x, extents);
}

/// The axis, of several, along which x and the weights have one element, without padding; -1: none. Exporters of TensorFlow write convolutions along
/// one axis so.
int idle_axis(Importer& to, VarId x, VarId w, std::span<const Window> windows) {
  const std::optional<DDim>&of_x = to.type(x).shape, &of_w = to.type(w).shape;
  if (windows.size() < 2 || !of_x || !of_w) return -1;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const int axis = static_cast<int>(i) + 2;
    if ((*of_x)[axis] == 1 && (*of_w)[axis] == 1 && windows[i].kernel == 1 && windows[i].before == 0 && windows[i].after == 0)
      return static_cast<int>(i);
  }
  return -1;
}

/// The convolution along axes 2 …: the first of them is taken apart, and what is left is a convolution along the others.
VarId conv_along(Importer& to, VarId x, VarId w, VarId bias, std::int64_t group, std::span<const Window> windows, bool winograd) {
  if (windows.size() == 1) return conv_along_one(to, x, w, bias, group, windows[0], winograd);
  if (const int idle = idle_axis(to, x, w, windows); idle >= 0) {
    std::vector<Window> others(windows.begin(), windows.end());
    others.erase(others.begin() + idle);
    const Ints axes{idle + 2};
    const VarId made = conv_along(to, to.squeezed(x, axes), to.squeezed(w, axes), bias, group, others, winograd);
    return to.emit1("unsqueeze", {made}, {{"axes", axes}});
  }
  const VarId apart = windows_by_place(to, x, windows[0]);
  const VarId rows = joined_batch(to, apart);
  std::vector<Extent> merged{extent_at(to, w, 0), product(to, w, 1, 3)};
  for (int axis = 3; axis < to.rank(w); ++axis) merged.push_back(extent_at(to, w, axis));
  const VarId made = conv_along(to, rows, reshaped(to, w, merged), bias, group, windows.subspan(1), winograd);
  std::vector<Extent> extents{extent_at(to, apart, 0), extent_at(to, apart, 1)};
  Ints perm{0, 2, 1};
  for (int axis = 1; axis < to.rank(made); ++axis) extents.push_back(extent_at(to, made, axis));
  for (int axis = 3; axis <= to.rank(made); ++axis) perm.push_back(axis);
  return to.emit1("transpose", {reshaped(to, made, extents)}, {{"perm", perm}});
}

/// Whether a result depends on elements behind its place: an axis of that kind cannot go live.
bool looks_ahead(const Window& window) {
  return window.stride == 1 && (window.after > 0 || ((window.same_upper || window.same_lower) && window.span() > 2));
}

/// Whether rows of the output may be made together (kernels/winograd.h), whose bits are others: where no step of a live sequence makes the same rows
/// alone, and no iteration of a loop. A sequence goes along an axis whose extent is open.
bool may_be_winograd(Importer& to, const Node& node, VarId x, std::span<const Window> windows) {
  if (to.block() != 0 || windows.size() != 2) return false;
  const bool cut = to.cuts().behind(node.output(0));
  for (int axis = 0; axis < 2; ++axis)
    if ((*to.type(x).shape)[axis + 2] < 0 && (cut || !looks_ahead(windows[static_cast<std::size_t>(axis)]))) return false;
  return true;
}

/// Axes of a convolution, as x, the weights or kernel_shape say.
int conv_rank(Importer& to, const Node& node, VarId x, VarId w) {
  const std::optional<Ints> kernel = node.integers("kernel_shape");
  const int declared = kernel ? static_cast<int>(std::min<std::size_t>(kernel->size(), max_rank)) + 2 : -1;
  const int found = std::max({to.type(x).rank(), to.type(w).rank(), declared});
  for (const int rank : {to.type(x).rank(), to.type(w).rank(), declared})
    if (rank >= 0 && (rank < 3 || rank != found))
      throw ProgramError("expected x [N, C, D1, …], weights of the same rank and a kernel_shape of as many axes D1, …, found " +
                         to.type(x).to_string() + " and " + to.type(w).to_string());
  if (found < 0 || found > max_rank) return to.rank(x);
  return found;
}

/// `x`, whose rank may be unknown, as one of that rank.
VarId of_rank(Importer& to, VarId x, int rank) {
  return to.type(x).rank() >= 0 ? x : to.emit1("reshape", {x}, {{"shape", Ints(static_cast<std::size_t>(rank), 0)}});
}

/// `x` with the pads that "same" wants for a kernel that a run knows: (⌈L / s⌉ − 1)·s + span − L, at least 0.
VarId same_padded_by(Importer& to, VarId x, int axis, VarId kernel, const Window& window, bool upper) {
  const auto op = [&](const char* name, VarId a, VarId b) { return to.emit1(name, {a, b}); };
  const VarId length = extent_of(to, x, axis), stride = number(to, window.stride);
  const VarId windows = op("div", op("add", length, number(to, window.stride - 1)), stride);
  const VarId before_last = op("mul", op("sub", windows, number(to, 1)), stride);
  const VarId span = op("add", op("mul", op("sub", kernel, number(to, 1)), number(to, window.dilation)), number(to, 1));
  const VarId total = op("maximum", op("sub", op("add", before_last, span), length), number(to, 0));
  const VarId less = op("div", total, number(to, 2)), more = op("sub", total, less);
  const auto rank = static_cast<std::size_t>(to.rank(x));
  std::vector<VarId> pads(2 * rank, to.literal(Ints{0}));
  pads[static_cast<std::size_t>(axis)] = as_list(to, upper ? less : more);
  pads[static_cast<std::size_t>(axis) + rank] = as_list(to, upper ? more : less);
  return to.emit1("pad_by", {x, to.emit1("concat", pads, {{"axis", std::int64_t{0}}})}, {{"mode", std::string("constant")}});
}

/// The convolution with weights whose kernel a run finds: windows that are gathered, and one product for each group.
VarId convolved_by(Importer& to, const Node& node, VarId x, VarId w, VarId bias) {
  const int rank = to.rank(x), spatial = rank - 2;
  const std::vector<Window> windows = windows_of(node, spatial, Ints(static_cast<std::size_t>(spatial), 1));
  const std::string automatic = node.text("auto_pad", "NOTSET");
  const std::int64_t group = node.integer("group", 1);
  if (group < 1) throw ProgramError("attribute group: expected 1 or more, found " + std::to_string(group));
  Ints pads(2 * static_cast<std::size_t>(rank), 0), perm{0, 1};
  for (int axis = 2; axis < rank; ++axis) {
    const Window& window = windows[static_cast<std::size_t>(axis) - 2];
    if (automatic.starts_with("SAME")) x = same_padded_by(to, x, axis, extent_of(to, w, axis), window, automatic == "SAME_UPPER");
    if (automatic == "NOTSET")
      pads[static_cast<std::size_t>(axis)] = window.before, pads[static_cast<std::size_t>(axis + rank)] = window.after;
  }
  if (std::count(pads.begin(), pads.end(), 0) < 2 * rank) x = to.emit1("pad", {x}, {{"pads", pads}, {"mode", std::string("constant")}});
  for (int i = 0; i < spatial; ++i) {
    const Window& window = windows[static_cast<std::size_t>(i)];
    x = unfold_by(to, x, 2 + 2 * i, extent_at(to, w, 2 + i), {window.stride, no_var}, window.dilation);
  }
  for (const int first : {3, 2})
    for (int i = 0; i < spatial; ++i) perm.push_back(first + 2 * i);
  const VarId apart = to.emit1("transpose", {x}, {{"perm", perm}});  // [N, C, kernel…, places…]
  const Extent groups{group, no_var}, units = divided(to, w, 0, group), channels = extent_at(to, w, 1);
  const Extent taps = times(to, channels, product(to, w, 2, rank));
  // Channels of x that are no `group` times those of the weights make another number of elements, which the reshape refuses.
  const VarId columns = reshaped(to, apart, {extent_at(to, apart, 0), groups, taps, product(to, apart, 2 + spatial, 2 + 2 * spatial)});
  const VarId made = to.emit1("matmul", {reshaped(to, w, {groups, units, taps}), columns});
  std::vector<Extent> extents{extent_at(to, apart, 0), extent_at(to, w, 0)};
  for (int i = 0; i < spatial; ++i) extents.push_back(extent_at(to, apart, 2 + spatial + i));
  const VarId result = reshaped(to, made, extents);
  if (bias == no_var) return result;
  std::vector<Extent> along(static_cast<std::size_t>(rank) - 1, Extent{1, no_var});
  along[0] = extent_at(to, w, 0);
  return to.emit1("add", {result, reshaped(to, bias, along, true)});
}

void conv(Importer& to, const Node& node, const char*) {
  if (const VarId made = dequantized_convolution(to, node); made != no_var) return to.give(node, "identity", {made});
  to.give(node, "identity", {convolved(to, node, to.in(node, 0), to.in(node, 1), to.in_or_none(node, 2))});
}

/// The numbers of an activation. ParseError where there are others than `count`.
std::vector<float> activation_numbers(const Node& node, std::size_t count) {
  const std::vector<float> given = node.reals("activation_params");
  if (given.size() != count)
    throw ParseError("attribute activation_params: expected " + std::to_string(count) + ", found " + std::to_string(given.size()));
  return given;
}

/// As the optimiser of ONNX Runtime writes a Conv, an Add and an activation.
void fused_conv(Importer& to, const Node& node, const char*) {
  VarId made = convolved(to, node, to.in(node, 0), to.in(node, 1), to.in_or_none(node, 2));
  if (node.has(3)) made = to.emit1("add", {made, to.in(node, 3)});
  const std::string name = node.word("activation", "", {"", "Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid", "Clip"});
  const std::vector<float> numbers = activation_numbers(node, name == "LeakyRelu" ? 1 : name == "HardSigmoid" || name == "Clip" ? 2 : 0);
  const auto number = [&](std::size_t i) { return static_cast<double>(numbers[i]); };
  const auto literal = [&](std::size_t i) { return to.literal(scalar_of(to.type(made).dtype, number(i))); };
  if (name.empty()) return to.give(node, "identity", {made});
  if (name == "LeakyRelu") return to.give(node, "leaky_relu", {made}, {{"alpha", number(0)}});
  if (name == "HardSigmoid") return to.give(node, "hard_sigmoid", {made}, {{"alpha", number(0)}, {"beta", number(1)}});
  if (name == "Clip") return to.give(node, "clip", {made, literal(0), literal(1)});
  to.give(node, name == "Relu" ? "relu" : name == "Tanh" ? "tanh" : "sigmoid", {made});
}

// ---- pools

std::vector<Window> pool_windows(Importer& to, const Node& node, VarId x) {
  const int rank = to.rank(x);
  if (rank < 3) throw ProgramError("expected [N, C, D1, …], found " + to.type(x).to_string());
  if (!node.has_attribute("kernel_shape")) throw ParseError("attribute kernel_shape: expected one, found none");
  return windows_of(node, rank - 2, {});
}

VarId over_windows(Importer& to, const char* kind, VarId x, int axis, const Window& window, double pad, double beyond) {
  if (const std::vector<VarId> slices = window_slices(to, x, axis, window, pad, beyond); !slices.empty()) {
    VarId all = slices[0];
    const char* op = std::string_view(kind) == "max" ? "maximum" : "add";
    for (std::size_t i = 1; i < slices.size(); ++i) all = to.emit1(op, {all, slices[i]});
    return all;
  }
  const VarId apart = unfold(to, x, axis, window, pad, beyond);
  return to.emit1("reduce", {apart}, {{"kind", std::string(kind)}, {"axes", Ints{axis + 1}}, {"keepdims", false}});
}

/// The place of each element among all, in the order of the axes, or with the first spatial axis running fastest.
VarId places_of(Importer& to, VarId x, bool columns) {
  const int rank = to.rank(x);
  std::vector<Extent> extents{{1, no_var}, {1, no_var}};
  Ints turned{0, 1};
  for (int axis = 2; axis < rank; ++axis) {
    extents.push_back(extent_at(to, x, columns ? rank + 1 - axis : axis));
    turned.push_back(rank + 1 - axis);
  }
  const auto value = [&](const Extent& extent) { return extent.known >= 0 ? number(to, extent.known) : extent.var; };
  const VarId count = value(product(to, x, 2, rank));
  const VarId places = reshaped(to, to.emit1("range", {number(to, 0), count, number(to, 1)}), extents);
  return columns ? to.emit1("transpose", {places}, {{"perm", turned}}) : places;
}

/// Places of the maxima in the whole of x: the first of those as great in a window.
VarId maxima_places(Importer& to, const Node& node, VarId x, const std::vector<Window>& windows, double least) {
  const int rank = to.rank(x);
  const VarId best = to.emit1("argmax", {window_elements(to, x, windows, least)}, {{"axis", std::int64_t{-1}}, {"keepdims", true}});
  const VarId places = window_elements(to, places_of(to, x, node.flag("storage_order", false)), windows, -1);
  const VarId all =
      to.emit1("expand", {places, to.emit1("concat", {to.emit1("shape", {best}, {{"end", std::int64_t{rank}}}), to.literal(Ints{1})},
                                           {{"axis", std::int64_t{0}}})});
  const VarId picked = to.emit1("squeeze", {to.emit1("gather_elements", {all, best}, {{"axis", std::int64_t{-1}}})}, {{"axes", Ints{-1}}});
  const auto value = [&](const Extent& extent) { return extent.known >= 0 ? number(to, extent.known) : extent.var; };
  const VarId planes = to.emit1("range", {number(to, 0), value(product(to, x, 0, 2)), number(to, 1)});
  std::vector<Extent> extents{extent_at(to, x, 0), extent_at(to, x, 1)};
  extents.resize(static_cast<std::size_t>(rank), Extent{1, no_var});
  const VarId begins = to.emit1("mul", {reshaped(to, planes, extents), value(product(to, x, 2, rank))});
  return to.emit1("add", {picked, begins});
}

void max_pool(Importer& to, const Node& node, const char* order) {
  const bool last = *order != '\0';
  VarId x = last ? channels_first(to, to.in(node, 0)) : to.in(node, 0);
  const std::vector<Window> windows = pool_windows(to, node, x);
  const DType dtype = to.type(x).dtype;
  if (!is_floating(dtype) && dtype != DType::u8 && dtype != DType::i8)
    throw UnsupportedError("expected floats, i8 or u8, found " + to.type(x).to_string());
  const double least = is_floating(dtype) ? -std::numeric_limits<double>::infinity() : dtype == DType::u8 ? 0 : -128;
  if (!last && node.wants(1)) to.bind(node, 1, maxima_places(to, node, x, windows, least));
  for (std::size_t i = 0; i < windows.size(); ++i) x = over_windows(to, "max", x, static_cast<int>(i) + 2, windows[i], least, least);
  to.give(node, "identity", {last ? channels_last(to, x) : x});
}

/// The number of elements of each window of an axis, along that axis; `pads` count as `pad`.
VarId counted(Importer& to, VarId x, int axis, const Window& window, double pad) {
  const VarId length = as_list(to, extent_of(to, x, axis));
  const VarId ones = to.emit1("constant_of_shape", {length}, {{"value", scalar_of(to.type(x).dtype, 1).reshape(DDim{1}).read_only()}});
  Ints shape(static_cast<std::size_t>(to.rank(x) - axis), 1);
  shape[0] = -1;
  return to.emit1("reshape", {over_windows(to, "sum", ones, 0, window, pad, 0)}, {{"shape", shape}});
}

/// Whether all windows of an axis have as many elements as the kernel, whatever the extent is: their mean goes row by row then.
bool all_full(const Window& window, double pad) {
  const bool padded = window.before != 0 || window.after != 0 || window.same_upper || window.same_lower;
  return (!padded || pad == 1) && (!window.ceiling || window.stride == 1);
}

void average_pool(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  if (!is_floating(to.type(x).dtype)) throw ProgramError("expected floats, found " + to.type(x).to_string());
  to.give(node, "identity", {averaged(to, node, x)});
}

/// (Σ |x|^p)^(1/p), where `summed` makes the sums of its operand.
template <class Summed>
void power_mean(Importer& to, const Node& node, const Summed& summed) {
  const VarId x = to.in(node, 0);
  const std::int64_t p = node.integer("p", 2);
  if (p < 1) throw ProgramError("attribute p: expected 1 or more, found " + std::to_string(p));
  const Formula f(to, computed_in(to.type(x).dtype));
  const VarId sums = summed(f.op("pow", f.op("abs", f.taken(x)), static_cast<double>(p)));
  to.give(node, "identity", {f.cast(f.op("pow", sums, 1.0 / static_cast<double>(p)), to.type(x).dtype)});
}

void lp_pool(Importer& to, const Node& node, const char*) {
  const std::vector<Window> windows = pool_windows(to, node, to.in(node, 0));
  power_mean(to, node, [&](VarId sums) {
    for (std::size_t i = 0; i < windows.size(); ++i) sums = over_windows(to, "sum", sums, static_cast<int>(i) + 2, windows[i], 0, 0);
    return sums;
  });
}

VarId over_places(Importer& to, VarId x, const char* kind) {
  Ints axes;
  for (int axis = 2; axis < to.rank(x); ++axis) axes.push_back(axis);
  if (axes.empty()) return x;
  return to.emit1("reduce", {x}, {{"kind", std::string(kind)}, {"axes", axes}, {"keepdims", true}});
}

void global_pool(Importer& to, const Node& node, const char* kind) {
  const VarId mean = kind == std::string_view("mean") ? dequantized_mean(to, to.in(node, 0)) : no_var;
  if (mean != no_var) return to.give(node, "identity", {mean});
  to.give(node, "identity", {over_places(to, to.in(node, 0), kind)});
}

void global_lp_pool(Importer& to, const Node& node, const char*) {
  power_mean(to, node, [&](VarId sums) { return over_places(to, sums, "sum"); });
}

constexpr Rule window_table[] = {
    {"Conv", conv},
    {"com.microsoft.FusedConv", fused_conv},
    {"MaxPool", max_pool},
    {"com.microsoft.NhwcMaxPool", max_pool, "channels last"},
    {"AveragePool", average_pool},
    {"LpPool", lp_pool},
    {"GlobalAveragePool", global_pool, "mean"},
    {"GlobalMaxPool", global_pool, "max"},
    {"GlobalLpPool", global_lp_pool},
};

}  // namespace

VarId convolved(Importer& to, const Node& node, VarId x_given, VarId w_given, VarId bias, bool exact) {
  const int rank = conv_rank(to, node, x_given, w_given);
  const VarId x = of_rank(to, x_given, rank);
  const VarId w = of_rank(to, w_given, rank);
  Ints kernel;
  for (int axis = 2; axis < rank; ++axis) kernel.push_back((*to.type(w).shape)[axis]);
  if (!node.has_attribute("kernel_shape") && std::count(kernel.begin(), kernel.end(), DDim::unknown) > 0)
    return convolved_by(to, node, x, w, bias);
  const std::vector<Window> windows = windows_of(node, rank - 2, kernel);
  for (std::size_t i = 0; i < windows.size(); ++i)
    if (kernel[i] >= 0 && kernel[i] != windows[i].kernel)
      throw ProgramError("attribute kernel_shape: expected " + std::to_string(kernel[i]) + " as in the weights, found " +
                         std::to_string(windows[i].kernel));
  const std::int64_t group = node.integer("group", 1);
  if (to.program().constant(w) != nullptr && group >= 1 && group <= (*to.type(w).shape)[0])
    to.needs_extent(x, 1, (*to.type(w).shape)[1] * group);
  return conv_along(to, x, w, bias, group, windows, !exact && may_be_winograd(to, node, x, windows));
}

VarId convolved(Importer& to, VarId x, VarId w, VarId bias, std::int64_t group, const std::vector<Window>& windows) {
  return conv_along(to, x, w, bias, group, windows, false);
}

VarId averaged(Importer& to, const Node& node, VarId x) {
  const std::vector<Window> windows = pool_windows(to, node, x);
  const double pad = node.flag("count_include_pad", false) ? 1 : 0;
  const DType dtype = to.type(x).dtype;
  const Formula f(to, computed_in(dtype));
  x = f.taken(x);
  // One quotient is behind the sums: by the elements that a window has along all axes.
  VarId sums = x, counts = no_var;
  double factor = 1;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const int axis = static_cast<int>(i) + 2;
    sums = over_windows(to, "sum", sums, axis, windows[i], 0, 0);
    if (all_full(windows[i], pad)) {
      factor *= static_cast<double>(windows[i].kernel);
      continue;
    }
    const VarId along = counted(to, x, axis, windows[i], pad);
    counts = counts == no_var ? along : to.emit1("mul", {counts, along});
  }
  if (counts == no_var) return f.cast(f.over(sums, factor), dtype);
  return f.cast(f.over(sums, factor == 1 ? counts : f.op("mul", counts, factor)), dtype);
}

VarId channels_first(Importer& to, VarId x) {
  const int rank = to.rank(x);
  Ints perm{0, rank - 1};
  for (int axis = 1; axis < rank - 1; ++axis) perm.push_back(axis);
  return rank < 3 ? x : to.emit1("transpose", {x}, {{"perm", perm}});
}

VarId channels_last(Importer& to, VarId x) {
  const int rank = to.rank(x);
  Ints perm{0};
  for (int axis = 2; axis < rank; ++axis) perm.push_back(axis);
  perm.push_back(1);
  return rank < 3 ? x : to.emit1("transpose", {x}, {{"perm", perm}});
}

VarId window_elements(Importer& to, VarId x, const std::vector<Window>& windows, double pad) {
  const int spatial = static_cast<int>(windows.size());
  for (int i = 0; i < spatial; ++i) x = unfold(to, x, 2 + 2 * i, windows[static_cast<std::size_t>(i)], pad, pad);
  Ints perm{0, 1};
  for (const int first : {2, 3})
    for (int i = 0; i < spatial; ++i) perm.push_back(first + 2 * i);
  const VarId apart = to.emit1("transpose", {x}, {{"perm", perm}});
  std::vector<Extent> extents;
  for (int axis = 0; axis < 2 + spatial; ++axis) extents.push_back(extent_at(to, apart, axis));
  extents.push_back(product(to, apart, 2 + spatial, 2 + 2 * spatial));
  return reshaped(to, apart, extents);
}

std::span<const Rule> window_rules() { return window_table; }

}  // namespace millrace::importing
