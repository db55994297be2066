// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/shapes.h>

#include <algorithm>
#include <limits>

#include <millrace/runtime/models/import/with_onnx/tensor_proto.h>
#include <millrace/tensor/checked.h>

namespace millrace::importing {
namespace {

/// Beyond this nothing is a window; sums and products of two such numbers fit.
constexpr std::int64_t largest_window = std::int64_t{1} << 30;
/// The most elements of a window, each of which is named when it is unfolded.
constexpr std::int64_t largest_kernel = 1 << 16;
/// Windows of so many elements are joined out of slices, which move blocks; larger ones are gathered.
constexpr std::int64_t most_slices = 64;

std::int64_t window_number(const char* name, std::int64_t value, std::int64_t least) {
  if (value < least || value > largest_window)
    throw ParseError(std::string("attribute ") + name + ": expected " + std::to_string(least) + " to " + std::to_string(largest_window) +
                     ", found " + std::to_string(value));
  return value;
}

/// One number for each of `count` places.
Ints numbers_of(const Node& node, const char* name, std::size_t count, const Ints& otherwise) {
  const Ints values = node.integers(name).value_or(otherwise);
  if (values.size() != count)
    throw ProgramError(std::string("attribute ") + name + ": expected " + std::to_string(count) + " numbers, found " +
                       std::to_string(values.size()));
  return values;
}

/// Adds elements in front of and behind an axis.
VarId padded(Importer& to, VarId x, int axis, std::int64_t before, std::int64_t after, double value) {
  if (before == 0 && after == 0) return x;
  Ints pads(2 * static_cast<std::size_t>(to.rank(x)), 0);
  pads[static_cast<std::size_t>(axis)] = before;
  pads[static_cast<std::size_t>(axis + to.rank(x))] = after;
  return to.emit1("pad", {x}, {{"pads", pads}, {"mode", std::string("constant")}, {"value", value}});
}

/// Integer arithmetic of what a run computes; literals fold when the program is compiled. `op_with` takes a number.
VarId op(Importer& to, const char* name, VarId a, VarId b) { return to.emit1(name, {a, b}); }
VarId op_with(Importer& to, const char* name, VarId a, std::int64_t b) { return op(to, name, a, number(to, b)); }

/// The pads that "same" wants for an extent that a run knows: (⌈L / s⌉ − 1)·s + span − L, at least 0.
VarId same_padded(Importer& to, VarId x, int axis, const Window& window, double value) {
  const VarId length = extent_of(to, x, axis);
  const VarId windows = op_with(to, "div", op_with(to, "add", length, window.stride - 1), window.stride);
  const VarId reach = op_with(to, "add", op_with(to, "mul", op_with(to, "sub", windows, 1), window.stride), window.span());
  const VarId total = op_with(to, "maximum", op(to, "sub", reach, length), 0);
  const VarId less = op_with(to, "div", total, 2);
  const VarId more = op(to, "sub", total, less);
  const auto rank = static_cast<std::size_t>(to.rank(x));
  std::vector<VarId> pads(2 * rank, number(to, 0));
  pads[static_cast<std::size_t>(axis)] = window.same_upper ? less : more;
  pads[static_cast<std::size_t>(axis) + rank] = window.same_upper ? more : less;
  for (VarId& each : pads) each = as_list(to, each);
  const VarId all = to.emit1("concat", pads, {{"axis", std::int64_t{0}}});
  return to.emit1("pad_by", {x, all, to.literal(scalar_of(to.type(x).dtype, value))}, {{"mode", std::string("constant")}});
}

/// The pads that "same" wants for a known extent.
void same_pads(std::int64_t length, Window& window) {
  const std::int64_t windows = (length + window.stride - 1) / window.stride;
  const std::int64_t total = std::max<std::int64_t>(0, (windows - 1) * window.stride + window.span() - length);
  window.before = window.same_upper ? total / 2 : total - total / 2;
  window.after = total - window.before;
  window.same_upper = window.same_lower = false;
}

/// The number of windows over `length` elements, pads and all; `inner` of them are no pads behind.
VarId count_windows(Importer& to, VarId length, VarId inner, const Window& window) {
  const VarId room = op_with(to, "sub", length, window.span());
  if (!window.ceiling) return op_with(to, "add", op_with(to, "div", room, window.stride), 1);
  const VarId up = op_with(to, "add", op_with(to, "div", op_with(to, "add", room, window.stride - 1), window.stride), 1);
  // None begins in the pads behind.
  const VarId begun = op_with(to, "add", op_with(to, "div", op_with(to, "sub", inner, 1), window.stride), 1);
  return op(to, "minimum", up, begun);
}

}  // namespace

VarId number(Importer& to, std::int64_t value) { return to.literal(Tensor::scalar(value)); }
VarId count_to(Importer& to, VarId n) { return to.emit1("range", {number(to, 0), n, number(to, 1)}); }

VarId whole_numbers(Importer& to, VarId x) { return to.type(x).dtype == DType::i64 ? x : to.emit1("cast", {x}, {{"to", DType::i64}}); }

VarId sortable(Importer& to, VarId x) {
  const DType dtype = to.type(x).dtype;
  return dtype == DType::i8 || dtype == DType::u8 ? to.emit1("cast", {x}, {{"to", DType::i32}}) : x;
}

int axis_of(const std::string& what, std::int64_t axis, int rank) {
  if (axis < -rank || axis >= rank)
    throw ProgramError(what + ": expected an axis of rank " + std::to_string(rank) + ", found " + std::to_string(axis));
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

VarId extent_of(Importer& to, VarId x, int axis) {
  const std::int64_t at = axis_of("extent", axis, to.rank(x));
  const std::int64_t known = (*to.type(x).shape)[static_cast<int>(at)];
  if (known >= 0) return number(to, known);
  const VarId list = to.emit1("shape", {x}, {{"start", at}, {"end", at + 1}});
  return to.emit1("reshape", {list}, {{"shape", Ints{}}});
}

Extent extent_at(Importer& to, VarId x, int axis) {
  const std::int64_t known = (*to.type(x).shape)[axis_of("extent", axis, to.rank(x))];
  return known >= 0 ? Extent{known, no_var} : Extent{-1, extent_of(to, x, axis)};
}

VarId value_of(Importer& to, const Extent& extent) { return extent.known >= 0 ? number(to, extent.known) : extent.var; }

VarId as_list(Importer& to, VarId number) { return to.emit1("reshape", {number}, {{"shape", Ints{1}}}); }

VarId as_list(Importer& to, const Extent& extent) { return extent.known >= 0 ? to.literal(Ints{extent.known}) : as_list(to, extent.var); }

Extent times(Importer& to, const Extent& a, const Extent& b) {
  if (a.known >= 0 && b.known >= 0) return {checked_mul(a.known, b.known), no_var};
  if (a.known == 1) return b;
  if (b.known == 1) return a;
  const auto var = [&](const Extent& extent) { return extent.known >= 0 ? number(to, extent.known) : extent.var; };
  return {-1, op(to, "mul", var(a), var(b))};
}

Extent product(Importer& to, VarId x, int begin, int end) {
  Extent all{1, no_var};
  for (int axis = begin; axis < end; ++axis) all = times(to, all, extent_at(to, x, axis));
  return all;
}

Element element_at(Importer& to, VarId x, int axis) {
  const std::int64_t extent = (*to.type(x).shape)[axis];
  return extent == DDim::unknown ? to.origin(x, axis) : Element{extent};
}

VarId list_of(Importer& to, const std::vector<Element>& elements) {
  std::vector<VarId> parts;
  for (const Element& each : elements) {
    const std::int64_t at = each.axis;
    parts.push_back(each.number ? to.literal(Ints{*each.number}) : to.emit1("shape", {each.of}, {{"start", at}, {"end", at + 1}}));
  }
  return parts.empty() ? no_var : parts.size() == 1 ? parts[0] : to.emit1("concat", parts, {{"axis", std::int64_t{0}}});
}

Extent divided(Importer& to, VarId x, int axis, std::int64_t by) {
  const Extent all = extent_at(to, x, axis);
  if (all.known < 0) return {-1, op(to, "div", all.var, number(to, by))};
  if (all.known % by != 0)
    throw ProgramError("expected an extent of axis " + std::to_string(axis) + " that " + std::to_string(by) + " divides, found " +
                       to.type(x).to_string());
  return {all.known / by, no_var};
}

VarId reshaped(Importer& to, VarId x, const std::vector<Extent>& extents, bool exact) {
  Ints shape;
  for (const Extent& extent : extents) shape.push_back(extent.known);
  const auto count = [&](std::int64_t value) { return std::count(shape.begin(), shape.end(), value); };
  if (count(-1) <= (exact ? 0 : 1) && count(0) == 0) return to.emit1("reshape", {x}, {{"shape", shape}});
  std::vector<VarId> parts;
  for (const Extent& extent : extents) parts.push_back(as_list(to, extent));
  const VarId made = to.emit1("reshape_to", {x, to.emit1("concat", parts, {{"axis", std::int64_t{0}}})}, {{"allowzero", true}});
  if (count(0) > 0) return made;
  // Known extents stay, for later inference: 0 copies.
  std::replace(shape.begin(), shape.end(), std::int64_t{-1}, std::int64_t{0});
  return to.emit1("reshape", {made}, {{"shape", shape}});
}

VarId with_heads(Importer& to, VarId x, std::int64_t heads, const Ints& perm) {
  return to.emit1("transpose", {to.emit1("reshape", {x}, {{"shape", Ints{0, 0, heads, -1}}})}, {{"perm", perm}});
}

VarId with_extents(Importer& to, VarId made, VarId list) {
  const auto elements = to.elements(list);
  const bool some =
      elements && std::any_of(elements->begin(), elements->end(), [](const Element& each) { return each.number.has_value(); });
  const bool all = elements && std::all_of(elements->begin(), elements->end(), [](const Element& each) { return each.number.has_value(); });
  if (!some || all || std::cmp_greater(elements->size(), max_rank)) return made;
  Ints shape;
  for (const Element& each : *elements) shape.push_back(each.number.value_or(0));  // 0 copies an extent that a run computes
  return to.emit1("reshape", {made}, {{"shape", shape}});
}

DType dtype_attribute(const Node& node, const std::string& name) {
  return dtype_of_onnx(checked_cast<int>(node.integer(name, 0)), "attribute " + name);
}

std::vector<Window> windows_of(const Node& node, int spatial, const Ints& kernel) {
  const auto count = static_cast<std::size_t>(spatial);
  const Ints sizes = numbers_of(node, "kernel_shape", count, kernel);
  const Ints strides = numbers_of(node, "strides", count, Ints(count, 1));
  const Ints dilations = numbers_of(node, "dilations", count, Ints(count, 1));
  const std::string automatic = node.text("auto_pad", "NOTSET");
  if (automatic != "NOTSET" && automatic != "VALID" && automatic != "SAME_UPPER" && automatic != "SAME_LOWER")
    throw ParseError("attribute auto_pad: expected NOTSET, VALID, SAME_UPPER or SAME_LOWER, found another word");
  node.pass_over("pads");  // beside another auto_pad, as some exporters write them, they say nothing
  const Ints pads = automatic == "NOTSET" ? numbers_of(node, "pads", 2 * count, Ints(2 * count, 0)) : Ints(2 * count, 0);
  std::vector<Window> windows(count);
  for (std::size_t i = 0; i < count; ++i) {
    Window& window = windows[i];
    window.kernel = window_number("kernel_shape", sizes[i], 1);
    window.stride = window_number("strides", strides[i], 1);
    window.dilation = window_number("dilations", dilations[i], 1);
    window.before = window_number("pads", pads[i], 0);
    window.after = window_number("pads", pads[i + count], 0);
    window.ceiling = node.flag("ceil_mode", false);
    if (!automatic.starts_with("SAME")) continue;
    // Where no window is skipped the pads are the same for every extent.
    const std::int64_t total = window.span() - 1;
    const bool upper = automatic == "SAME_UPPER";
    if (window.stride == 1) {
      window.before = upper ? total / 2 : total - total / 2;
      window.after = total - window.before;
    } else {
      (upper ? window.same_upper : window.same_lower) = true;
    }
  }
  return windows;
}

VarId settled(Importer& to, VarId x, int axis, Window& window, double pad) {
  if (!window.same_upper && !window.same_lower) return x;
  const std::int64_t length = extent_at(to, x, axis).known;
  if (length >= 0) return same_pads(length, window), x;
  const VarId wide = same_padded(to, x, axis, window, pad);
  window.same_upper = window.same_lower = false;
  return wide;
}

std::vector<VarId> window_slices(Importer& to, VarId x, int axis, const Window& asked, double pad, double beyond) {
  Window window = asked;
  // Where no window begins in the pads behind, a last one that reaches beyond them is one of wider pads.
  if (window.ceiling && pad == beyond && !window.same_upper && !window.same_lower && window.after + window.stride <= window.span()) {
    window.after += window.stride - 1;
    window.ceiling = false;
  }
  if (window.ceiling || window.kernel > most_slices) return {};
  const VarId settled_x = settled(to, x, axis, window, pad);  // which changes the window
  const VarId wide = padded(to, settled_x, axis, window.before, window.after, pad);
  std::vector<VarId> slices;
  for (std::int64_t place = 0; place < window.kernel; ++place) {
    const std::int64_t begin = place * window.dilation, behind = window.span() - 1 - begin;
    // As many elements before the end as the window reaches beyond this place: every slice is as long, whatever the extent.
    const std::int64_t end = behind == 0 ? std::numeric_limits<std::int64_t>::max() : -behind;
    slices.push_back(window.trivial()
                         ? wide
                         : to.emit1("slice", {wide},
                                    {{"starts", Ints{begin}}, {"ends", Ints{end}}, {"axes", Ints{axis}}, {"steps", Ints{window.stride}}}));
  }
  return slices;
}

VarId unfold(Importer& to, VarId x, int axis, const Window& asked, double pad, double beyond) {
  if (const std::vector<VarId> slices = window_slices(to, x, axis, asked, pad, beyond); !slices.empty()) {
    std::vector<VarId> apart;
    for (const VarId slice : slices) apart.push_back(to.emit1("unsqueeze", {slice}, {{"axes", Ints{axis + 1}}}));
    return apart.size() == 1 ? apart[0] : to.emit1("concat", apart, {{"axis", std::int64_t{axis + 1}}});
  }
  Window window = asked;
  const VarId settled_x = settled(to, x, axis, window, pad);
  const VarId wide = padded(to, settled_x, axis, window.before, window.after, pad);
  const VarId length = extent_of(to, wide, axis);
  const VarId all = window.ceiling ? padded(to, wide, axis, 0, window.stride - 1, beyond) : wide;
  const VarId windows = count_windows(to, length, op_with(to, "sub", length, window.after), window);
  const VarId starts = op_with(to, "mul", to.emit1("range", {number(to, 0), windows, number(to, 1)}), window.stride);
  if (window.kernel > largest_kernel)
    throw UnsupportedError("attribute kernel_shape: expected at most " + std::to_string(largest_kernel) + ", found " +
                           std::to_string(window.kernel));
  Ints offsets;
  for (std::int64_t i = 0; i < window.kernel; ++i) offsets.push_back(i * window.dilation);
  const VarId each = to.emit1("unsqueeze", {starts}, {{"axes", Ints{1}}});
  return to.emit1("gather", {all, op(to, "add", each, to.literal(offsets))}, {{"axis", std::int64_t{axis}}});
}

VarId windows_over(Importer& to, VarId length, VarId kernel, VarId stride, std::int64_t dilation) {
  const VarId span = op_with(to, "add", op_with(to, "mul", op_with(to, "sub", kernel, 1), dilation), 1);
  // Quotients are cut off towards 0: the sum is 0 or more where a window fits, and below the stride where none does.
  const VarId room = op(to, "add", op(to, "sub", length, span), stride);
  return op(to, "div", op_with(to, "maximum", room, 0), stride);
}

VarId unfold_by(Importer& to, VarId x, int axis, const Extent& kernel, const Extent& stride, std::int64_t dilation) {
  const VarId size = value_of(to, kernel), step = value_of(to, stride);
  const VarId starts = op(to, "mul", count_to(to, windows_over(to, extent_of(to, x, axis), size, step, dilation)), step);
  const VarId places = op_with(to, "mul", count_to(to, size), dilation);
  const VarId each = to.emit1("unsqueeze", {starts}, {{"axes", Ints{1}}});
  return to.emit1("gather", {x, op(to, "add", each, places)}, {{"axis", std::int64_t{axis}}});
}

}  // namespace millrace::importing
