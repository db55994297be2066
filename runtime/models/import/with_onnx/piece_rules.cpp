// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include <millrace/runtime/models/import/with_onnx/axes.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

namespace millrace::importing {
namespace {

void concat(Importer& to, const Node& node, const char* op) {
  to.in(node, 0);
  if (!node.has_attribute("axis")) throw ParseError("attribute axis: expected one, found none");
  to.give(node, op, to.all_in(node), {{"axis", node.integer("axis", 0)}});
}

/// Sizes were an attribute up to opset 12. Without sizes the parts are equal, the last of opset 18 perhaps shorter; none where the extent is
/// not known.
Ints split_sizes(Importer& to, const Node& node, VarId x, std::int64_t axis) {
  Ints given = to.opset() >= 13 ? to.needed_integers(node, 1, {}) : node.integers("split").value_or(Ints{});
  if (!given.empty()) return given;
  const auto parts = static_cast<std::int64_t>(node.outputs());
  if (node.integer("num_outputs", parts) != parts)
    throw ParseError("attribute num_outputs: expected " + std::to_string(parts) + ", found " +
                     std::to_string(node.integer("num_outputs", 0)));
  to.rank(x);
  const std::int64_t extent = (*to.type(x).shape)[static_cast<int>(axis)];
  if (extent < 0) return {};
  const std::int64_t size = (extent + parts - 1) / parts;
  if (extent != size * parts && to.opset() < 18)
    throw ProgramError("expected an extent for " + std::to_string(parts) + " equal parts, found " + std::to_string(extent));
  Ints sizes;
  for (std::int64_t i = 0; i < parts; ++i) sizes.push_back(std::clamp<std::int64_t>(extent - i * size, 0, size));
  return sizes;
}

/// Part i of an extent that a run knows: from i·size on, where size = ⌈extent / parts⌉.
void split_in_run(Importer& to, const Node& node, VarId x, int axis) {
  const VarId rounding = number(to, static_cast<std::int64_t>(node.outputs()) - 1);
  const VarId parts = number(to, static_cast<std::int64_t>(node.outputs()));
  const VarId size = to.emit1("div", {to.emit1("add", {extent_of(to, x, axis), rounding}), parts});
  const auto bound = [&](std::size_t part) {
    return to.emit1("reshape", {to.emit1("mul", {size, number(to, static_cast<std::int64_t>(part))})}, {{"shape", Ints{1}}});
  };
  for (std::size_t i = 0; i < node.outputs(); ++i)
    to.bind(node, i, to.emit1("slice_by", {x, bound(i), bound(i + 1), to.literal(Ints{axis})}, {}, node.output(i)));
}

/// Sizes that a run computes. They must sum up to the extent of the axis: a reshape to their sum says so.
void split_by(Importer& to, const Node& node, VarId x, int axis) {
  const VarId sizes = list_input(to, node, 1);
  const std::int64_t count = (*to.type(sizes).shape)[0];
  if (count >= 0 && std::cmp_not_equal(count, node.outputs()))
    throw ProgramError("expected " + std::to_string(node.outputs()) + " sizes, found " + std::to_string(count));
  const Attributes first{{"axis", std::int64_t{0}}};
  const VarId total = to.emit1("reduce", {sizes}, {{"kind", std::string("sum")}, {"axes", Ints{0}}, {"keepdims", true}});
  const VarId dims = to.emit1("scatter_elements", {to.emit1("shape", {x}), to.literal(Ints{axis}), total}, first);
  const VarId checked = to.emit1("reshape_to", {x, dims}, {{"allowzero", true}});
  const VarId ends = to.emit1("cumsum", {sizes}, first);
  const VarId starts = to.emit1("sub", {ends, sizes});
  for (std::size_t i = 0; i < node.outputs(); ++i) {
    const VarId at = to.literal(Ints{static_cast<std::int64_t>(i)});
    const VarId begin = to.emit1("gather", {starts, at}, first), end = to.emit1("gather", {ends, at}, first);
    to.bind(node, i, to.emit1("slice_by", {checked, begin, end, to.literal(Ints{axis})}, {}, node.output(i)));
  }
}

void split(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0);
  const std::int64_t axis = axis_of("attribute axis", node.integer("axis", 0), to.rank(x));
  if (to.opset() >= 13 && node.has(1) && !to.known_integers(node, 1)) return split_by(to, node, x, static_cast<int>(axis));
  const Ints sizes = split_sizes(to, node, x, axis);
  if (sizes.empty()) return split_in_run(to, node, x, static_cast<int>(axis));
  if (sizes.size() != node.outputs())
    throw ProgramError("expected " + std::to_string(node.outputs()) + " sizes, found " + std::to_string(sizes.size()));
  std::vector<std::string> names;
  for (std::size_t i = 0; i < node.outputs(); ++i) names.push_back(node.output(i));
  const std::vector<VarId> parts = to.emit(op, {x}, {{"axis", axis}, {"sizes", sizes}}, names);
  for (std::size_t i = 0; i < parts.size(); ++i) to.bind(node, i, parts[i]);
}

/// A convolution with padding at both ends, of which a slice from 0 on cuts the last places off, as exporters write causal ones: the same convolution with less
/// padding behind. `end`: that of the slice along the axis of the places. Null where it is none.
VarId convolved_before(Importer& to, VarId x, std::int64_t axis, const Element& end) {
  const Op* const made = to.maker(to.copied(x));
  if (made == nullptr || made->type != "conv1d" || axis != 2) return no_var;
  Op op = *made;  // appending moves it
  const auto number = [&](const char* name) { return op.attributes.get_or(name, std::int64_t{1}); };
  Ints pads = op.attributes.get_or("pads", Ints{0, 0});
  const std::optional<DDim>& weights = to.type(op.inputs[1]).shape;
  if (number("stride") != 1 || !weights || weights->rank() != 3 || (*weights)[2] < 1) return no_var;
  std::int64_t cut = 0;
  if (end.number)
    cut = -*end.number;
  else if (end.of != no_var && to.origin(end.of, end.axis) == to.origin(op.inputs[0], 2))  // as many places as x has
    cut = pads[0] + pads[1] - ((*weights)[2] - 1) * number("dilation");
  if (cut < 1 || cut > pads[1]) return no_var;
  pads[1] -= cut;
  op.attributes.set("pads", pads);
  return to.emit1(op.type, op.inputs, op.attributes);
}

/// Bounds of a slice without the axes that it takes whole, as exporters write x[:, 2:]; one stays. Bounds that do not fit stay as they are.
void leave_out_whole(int rank, Ints& starts, Ints& ends, std::optional<Ints>& axes, std::optional<Ints>& steps) {
  const std::size_t count = starts.size();
  Ints along;
  for (std::size_t i = 0; i < count; ++i) along.push_back(axes && i < axes->size() ? (*axes)[i] : static_cast<std::int64_t>(i));
  const bool fitting = ends.size() == count && (!axes || axes->size() == count) && (!steps || steps->size() == count) &&
                       std::all_of(along.begin(), along.end(), [&](std::int64_t axis) { return axis >= -rank && axis < rank; });
  if (!fitting || count < 2) return;
  for (std::size_t i = count; i-- > 0 && starts.size() > 1;) {
    const auto step = steps ? std::optional(Ints{(*steps)[i]}) : std::nullopt;
    if (!is_whole({starts[i]}, {ends[i]}, step)) continue;
    const auto place = static_cast<std::ptrdiff_t>(i);
    for (Ints* list : {&starts, &ends, &along}) list->erase(list->begin() + place);
    if (steps) steps->erase(steps->begin() + place);
    axes = along;
  }
}

/// Bounds were attributes up to opset 9. A slice of everything, as exporters write x[:, …], is x.
void slice(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const auto give = [&](Ints starts, Ints ends, std::optional<Ints> axes, std::optional<Ints> steps) {
    if (is_whole(starts, ends, steps) && (!axes || axes->size() == starts.size())) return to.bind(node, 0, x);
    if (to.type(x).shape) leave_out_whole(to.type(x).rank(), starts, ends, axes, steps);
    Attributes attributes{{"starts", starts}, {"ends", ends}};
    if (axes) attributes.set("axes", *axes);
    if (steps) attributes.set("steps", *steps);
    to.give(node, "slice", {x}, attributes);
  };
  if (to.opset() < 10) {
    const std::optional<Ints> starts = node.integers("starts");
    const std::optional<Ints> ends = node.integers("ends");
    if (!starts || !ends) throw ParseError("expected attributes starts and ends, found none");
    return give(*starts, *ends, node.integers("axes"), std::nullopt);
  }
  const std::optional<Ints> starts = to.known_integers(node, 1);
  const std::optional<Ints> ends = to.known_integers(node, 2);
  const std::optional<Ints> axes = to.known_integers(node, 3);
  const std::optional<Ints> steps = to.known_integers(node, 4);
  if (starts && *starts == Ints{0} && axes && axes->size() == 1 && to.type(x).rank() > 0 && (steps ? *steps == Ints{1} : !node.has(4))) {
    const auto end = to.elements(to.in(node, 2));
    const std::int64_t axis = axes->front() < 0 ? axes->front() + to.type(x).rank() : axes->front();
    if (end && end->size() == 1)
      if (const VarId made = convolved_before(to, x, axis, end->front()); made != no_var) return to.bind(node, 0, made);
  }
  if (starts && ends && (axes || !node.has(3)) && (steps || !node.has(4))) return give(*starts, *ends, axes, steps);
  to.give(node, "slice_by", {x, to.in(node, 1), to.in(node, 2), to.in_or_none(node, 3), to.in_or_none(node, 4)});
}

/// Pads of the axes that are named, as pads of all axes.
Ints spread_pads(Importer& to, const Node& node, VarId x, const Ints& pads) {
  if (!node.has(3)) return pads;
  const Ints axes = to.needed_integers(node, 3, {});
  if (pads.size() != 2 * axes.size())
    throw ProgramError("expected " + std::to_string(2 * axes.size()) + " pads, found " + std::to_string(pads.size()));
  const int rank = to.rank(x);
  Ints all(2 * static_cast<std::size_t>(rank), 0);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::int64_t axis = axes[i] < 0 ? axes[i] + rank : axes[i];
    if (axis < 0 || axis >= rank)
      throw ProgramError("expected axes of rank " + std::to_string(rank) + ", found " + std::to_string(axes[i]));
    all[static_cast<std::size_t>(axis)] = pads[i];
    all[static_cast<std::size_t>(axis + rank)] = pads[i + axes.size()];
  }
  return all;
}

/// The pads of all axes, where a run computes those of some, or which these are.
VarId pads_in_run(Importer& to, const Node& node, VarId x) {
  const VarId given = list_input(to, node, 1);
  if (!node.has(3)) return given;
  const Attributes first{{"axis", std::int64_t{0}}};
  const std::int64_t rank = to.rank(x);
  const VarId both = to.emit1("reshape", {given}, {{"shape", Ints{2, -1}}});
  const VarId at = to.emit1("mod", {list_input(to, node, 3), number(to, rank)});
  const auto side = [&](std::int64_t which) {
    const VarId pads = to.emit1("gather", {both, number(to, which)}, first);
    return to.emit1("scatter_elements", {to.literal(Ints(static_cast<std::size_t>(rank), 0)), at, pads}, first);
  };
  const VarId before = side(0), after = side(1);
  return to.emit1("concat", {before, after}, first);
}

/// Pads were an attribute up to opset 10; axes are an input from 18 on.
void pad(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const std::string mode = node.word("mode", "constant", {"constant", "reflect", "edge", "wrap"});
  if (to.opset() < 11) {
    const std::optional<Ints> pads = node.integers("pads");
    if (!pads) throw ParseError("attribute pads: expected one, found none");
    return to.give(node, "pad", {x}, {{"pads", *pads}, {"mode", mode}, {"value", node.real("value", 0)}});
  }
  const std::optional<Ints> pads = to.known_integers(node, 1);
  const Tensor* value = to.known(node, 2);
  if (!pads || (node.has(3) && !to.known_integers(node, 3)))
    return to.give(node, "pad_by", {x, pads_in_run(to, node, x), to.in_or_none(node, 2)}, {{"mode", mode}});
  const Ints all = spread_pads(to, node, x, *pads);
  // An attribute is an f64, which does not hold every integer.
  if (node.has(2) && (value == nullptr || value->dtype() == DType::i64))
    return to.give(node, "pad_by", {x, to.literal(all), to.in(node, 2)}, {{"mode", mode}});
  to.give(node, "pad", {x}, {{"pads", all}, {"mode", mode}, {"value", value == nullptr ? 0.0 : value->item()}});
}

void gather(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0), index = to.in(node, 1);
  const std::int64_t axis = node.integer("axis", 0);
  const int rank = to.type(x).rank();
  if (std::string_view(op) == "gather" && rank > 0 && axis >= -rank && axis < rank)
    if (const VarId read = to.step_read(x, static_cast<int>(axis < 0 ? axis + rank : axis), index); read != no_var)
      return to.bind(node, 0, read);
  to.give(node, op, {x, index}, {{"axis", axis}});
}

/// ONNX takes indices and depth of any number type.
void one_hot(Importer& to, const Node& node, const char* op) {
  const auto index = [&](std::size_t input) {
    const VarId var = to.in(node, input);
    const DType dtype = to.type(var).dtype;
    return dtype == DType::i64 || dtype == DType::i32 ? var : to.emit1("cast", {var}, {{"to", DType::i64}});
  };
  const VarId indices = index(0);
  const VarId depth = index(1);
  to.give(node, op, {indices, depth, to.in(node, 2)}, {{"axis", node.integer("axis", -1)}});
}

constexpr Rule piece_table[] = {
    {"Concat", concat, "concat"},
    {"Split", split, "split"},
    {"Slice", slice},
    {"Pad", pad},
    {"Gather", gather, "gather"},
    {"GatherElements", gather, "gather_elements"},
    {"OneHot", one_hot, "one_hot"},
};

}  // namespace

std::span<const Rule> piece_rules() { return piece_table; }

bool is_whole(const Ints& starts, const Ints& ends, const std::optional<Ints>& steps) {
  const auto all = [](const Ints& numbers, auto&& holds) { return std::all_of(numbers.begin(), numbers.end(), holds); };
  return starts.size() == ends.size() && (!steps || (steps->size() == starts.size() && all(*steps, [](auto step) { return step == 1; }))) &&
         all(starts, [](auto start) { return start == 0; }) && all(ends, [](auto end) {
           return end == std::numeric_limits<std::int64_t>::max() || end == std::numeric_limits<std::int32_t>::max();
         });
}

}  // namespace millrace::importing
