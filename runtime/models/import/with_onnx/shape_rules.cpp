// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/models/import/with_onnx/axes.h>
#include <millrace/runtime/models/import/with_onnx/element_types.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>
#include <millrace/runtime/models/import/with_onnx/tensor_proto.h>

namespace millrace::importing {
namespace {

/// Products of two such numbers fit.
constexpr std::int64_t largest_repeat = std::int64_t{1} << 31;

void transpose(Importer& to, const Node& node, const char* op) {
  Attributes attributes;
  if (const std::optional<Ints> perm = node.integers("perm")) attributes.set("perm", *perm);
  to.give(node, op, {to.in(node, 0)}, attributes);
}

/// A computed shape as an attribute, where it names extents of x in their places (0 copies) and at most one number is not known (−1).
std::optional<Ints> as_attribute(Importer& to, const std::vector<Element>& shape, VarId x, bool allow_zero) {
  Ints made;
  int unknown = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const int axis = static_cast<int>(i);
    const bool copied = shape[i].of != no_var && axis < to.type(x).rank() && to.same_extent(shape[i].of, shape[i].axis, x, axis);
    made.push_back(copied ? 0 : shape[i].number.value_or(-1));
    unknown += made.back() == -1 ? 1 : 0;
    if ((allow_zero && shape[i].number == 0) || made.back() < -1) return std::nullopt;
  }
  return unknown <= 1 && std::cmp_less_equal(shape.size(), max_rank) ? std::optional(made) : std::nullopt;
}

/// The extents of a computed shape that are known, with 0, which copies, for the others. Empty: none is known.
Ints known_extents(const std::vector<Element>& shape) {
  Ints made;
  for (const Element& each : shape) made.push_back(std::max<std::int64_t>(each.number.value_or(0), 0));
  const bool some = std::any_of(made.begin(), made.end(), [](std::int64_t extent) { return extent > 0; });
  return some && std::cmp_less_equal(made.size(), max_rank) ? made : Ints{};
}

void reshape(Importer& to, const Node& node, const char*) {
  const bool allow_zero = node.flag("allowzero", false);
  const VarId x = to.in(node, 0);
  const std::optional<Ints> shape = to.known_integers(node, 1);
  if (shape && !allow_zero) return to.give(node, "reshape", {x}, {{"shape", *shape}});
  if (const auto elements = to.elements(to.in(node, 1))) {
    // An element that a run computes may itself be −1 or 0: only extents are sure to be none of them.
    const bool extents =
        std::all_of(elements->begin(), elements->end(), [](const Element& each) { return each.number || each.of != no_var; });
    const std::optional<Ints> attribute = extents ? as_attribute(to, *elements, x, allow_zero) : std::nullopt;
    if (attribute) return to.give(node, "reshape", {x}, {{"shape", *attribute}});
    if (const Ints kept = known_extents(*elements); !shape && !kept.empty()) {
      const VarId made = to.emit1("reshape_to", {x, to.in(node, 1)}, {{"allowzero", allow_zero}});
      return to.give(node, "reshape", {made}, {{"shape", kept}});
    }
  }
  to.give(node, "reshape_to", {x, to.in(node, 1)}, {{"allowzero", allow_zero}});
}

/// Axes were an attribute up to opset 12.
Ints axes_of(Importer& to, const Node& node) {
  return to.opset() >= 13 ? to.needed_integers(node, 1, {}) : node.integers("axes").value_or(Ints{});
}

bool axes_in_run(Importer& to, const Node& node) { return to.opset() >= 13 && node.has(1) && !to.known_integers(node, 1); }

void squeeze(Importer& to, const Node& node, const char* op) {
  if (!axes_in_run(to, node)) {
    const Ints axes = axes_of(to, node);
    if (axes.empty()) return to.give(node, op, {to.in(node, 0)}, {{"axes", axes}});
    return to.bind(node, 0, to.squeezed(to.in(node, 0), axes, node.wants(0) ? node.output(0) : ""));
  }
  const VarId x = to.in(node, 0);
  const NamedAxes axes(to, list_input(to, node, 1), to.rank(x));
  if (axes.count() == 0) throw ProgramError("expected axes, found an empty list");
  const VarId dims = to.emit1("gather", {to.emit1("shape", {x}), axes.others()}, {{"axis", std::int64_t{0}}});
  const VarId made = to.emit1("reshape_to", {x, dims}, {{"allowzero", true}});
  to.give(node, "identity", {with_rank(to, made, axes.count() < 0 ? -1 : to.rank(x) - axes.count())});
}

/// The extents of x at the places that are not named, 1 at those that are.
void unsqueeze_in_run(Importer& to, const Node& node, VarId x) {
  const VarId list = list_input(to, node, 1);
  const std::int64_t count = (*to.type(list).shape)[0];
  if (count < 0 || to.rank(x) + count > max_rank)
    throw UnsupportedError("input axes: expected a list of a known length, found " + to.type(list).to_string());
  const NamedAxes axes(to, list, to.rank(x) + static_cast<int>(count));
  const VarId ones = to.literal(Ints(static_cast<std::size_t>(to.rank(x) + count), 1));
  const VarId dims = to.emit1("scatter_elements", {ones, axes.others(), to.emit1("shape", {x})}, {{"axis", std::int64_t{0}}});
  to.give(node, "identity", {with_rank(to, to.emit1("reshape_to", {x, dims}, {{"allowzero", true}}), to.rank(x) + count)});
}

void unsqueeze(Importer& to, const Node& node, const char* op) {
  if (axes_in_run(to, node)) return unsqueeze_in_run(to, node, to.in(node, 0));
  const Ints axes = axes_of(to, node);
  const VarId x = to.in(node, 0);
  if (axes.empty()) return to.give(node, "identity", {x});
  to.give(node, op, {x}, {{"axes", axes}});
}

void flatten(Importer& to, const Node& node, const char* op) { to.give(node, op, {to.in(node, 0)}, {{"axis", node.integer("axis", 1)}}); }

/// The shape of a value that is made of one item of x (`zeros_like(x[:, 0])`, or of a first state that a cell computes) is read of x: a live sequence does not let
/// its rows be picked, and nobody needs the value. None where x has as many axes, or where an extent comes from nowhere.
VarId shape_behind(Importer& to, VarId var, std::int64_t begin, std::int64_t end) {
  std::vector<Element> extents;
  for (auto axis = static_cast<int>(begin); axis < end; ++axis) extents.push_back(element_at(to, var, axis));
  const auto longer = [&](const Element& each) { return each.of != no_var && to.rank(each.of) > to.rank(var); };
  return std::none_of(extents.begin(), extents.end(), longer) ? no_var : list_of(to, extents);
}

void shape(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0);
  Attributes attributes;
  for (const char* name : {"start", "end"})
    if (node.has_attribute(name)) attributes.set(name, node.integer(name, 0));
  if (to.type(x).rank() > 0) {
    const std::int64_t rank = to.rank(x);
    const auto place = [&](const char* name, std::int64_t otherwise) {
      const std::int64_t given = attributes.get_or(name, otherwise);
      return std::clamp(given < 0 ? given + rank : given, std::int64_t{0}, rank);
    };
    if (const VarId made = shape_behind(to, x, place("start", 0), place("end", rank)); made != no_var) return to.bind(node, 0, made);
  }
  to.give(node, op, {x}, attributes);
}

void size(Importer& to, const Node& node, const char* op) { to.give(node, op, {to.in(node, 0)}); }

/// Extents that are known stay so beside repeats that a run computes.
void tile(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0);
  const VarId list = to.in(node, 1);
  const VarId made = to.emit1(op, {x, list}, {}, node.wants(0) ? node.output(0) : "");
  const auto repeats = to.elements(list);
  const std::optional<DDim> from = to.type(x).shape;
  if (!repeats || !from || to.type(made).is_static() || std::cmp_not_equal(repeats->size(), from->rank())) return to.bind(node, 0, made);
  Ints shape;
  for (int axis = 0; axis < from->rank(); ++axis) {
    const std::optional<std::int64_t> number = (*repeats)[static_cast<std::size_t>(axis)].number;
    const bool known = number && *number > 0 && *number <= largest_repeat && (*from)[axis] > 0 && (*from)[axis] <= largest_repeat;
    shape.push_back(known ? (*from)[axis] * *number : 0);
  }
  const bool more = std::any_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent > 0; });
  to.bind(node, 0, more ? to.emit1("reshape", {made}, {{"shape", shape}}) : made);
}

/// The list of an `expand` without what a run computes: 1 for axes that stay as they are. None where an axis of 1 may become another number.
std::optional<Ints> known_stretch(Importer& to, VarId x, VarId list) {
  const auto elements = to.elements(list);
  if (!elements || to.program().constant(list) != nullptr || !to.type(x).shape || std::cmp_greater(elements->size(), max_rank))
    return std::nullopt;
  const DDim from = *to.type(x).shape;
  Ints made;
  for (std::size_t i = 0; i < elements->size(); ++i) {
    const Element& each = (*elements)[i];
    const int axis = from.rank() - static_cast<int>(elements->size() - i);
    const bool kept = each.number == 1 || (each.of != no_var && axis >= 0 && to.same_extent(each.of, each.axis, x, axis));
    if (!kept && !each.number) return std::nullopt;
    made.push_back(kept ? 1 : *each.number);
  }
  return made;
}

/// Extents that are known stay so where a run computes others: an axis of 1 becomes the number of the list, and 1 in the list leaves an axis as it is.
void expand(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0);
  VarId list = to.in(node, 1);
  if (const auto known = known_stretch(to, x, list)) list = to.literal(*known);
  const VarId made = to.emit1(op, {x, list}, {}, node.wants(0) ? node.output(0) : "");
  const auto elements = to.elements(list);
  if (!elements || !to.type(x).shape || to.type(made).is_static()) return to.bind(node, 0, made);
  const DDim& from = *to.type(x).shape;
  const int rank = std::max(from.rank(), static_cast<int>(elements->size()));
  if (rank > max_rank || to.rank(made) != rank) return to.bind(node, 0, made);
  Ints shape;
  bool more = false;
  for (int axis = 0; axis < rank; ++axis) {
    const int own = axis - rank + from.rank(), at = axis - rank + static_cast<int>(elements->size());
    const std::int64_t extent = own < 0 ? 1 : from[own];
    const Element element = at < 0 ? Element{1} : (*elements)[static_cast<std::size_t>(at)];
    // An extent beside another number than 1 stays, or the run fails.
    const std::int64_t known = extent > 1 ? extent : element.number && (*element.number > 1 || extent == 1) ? *element.number : 0;
    more = more || (known > 0 && (*to.type(made).shape)[axis] == DDim::unknown);
    shape.push_back(known > 0 ? known : 0);
  }
  to.bind(node, 0, more ? to.emit1("reshape", {made}, {{"shape", shape}}) : made);
}

void range(Importer& to, const Node& node, const char* op) {
  node.expect_integer("stash_type", onnx::TensorProto::FLOAT);
  to.give(node, op, {to.in(node, 0), to.in(node, 1), to.in(node, 2)});
}

void constant(Importer& to, const Node& node, const char*) {
  if (const onnx::TensorProto* tensor = node.tensor("value"))
    return to.bind_constant(node, to.held_tensor_of(*tensor, "attribute value"), held_type(tensor->data_type()));
  if (node.has_attribute("value_float")) return to.bind_constant(node, Tensor::scalar(static_cast<float>(node.real("value_float", 0))));
  if (node.has_attribute("value_int")) return to.bind_constant(node, Tensor::scalar(node.integer("value_int", 0)));
  if (node.has_attribute("value_floats")) {
    const std::vector<float> values = node.reals("value_floats");
    return to.bind_constant(node, Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())}));
  }
  if (const std::optional<Ints> values = node.integers("value_ints"))
    return to.bind_constant(node, Tensor::from(*values, DDim{static_cast<std::int64_t>(values->size())}));
  throw UnsupportedError("expected a value of numbers, found none (a string or a sparse tensor)");
}

void constant_of_shape(Importer& to, const Node& node, const char* op) {
  const onnx::TensorProto* tensor = node.tensor("value");
  const Tensor value = tensor == nullptr ? Tensor::from<float>({0}) : to.tensor_of(*tensor, "attribute value");
  if (value.elements() != 1) throw ParseError("attribute value: expected one element, found " + value.to_string());
  const VarId list = to.in(node, 0);
  const VarId made = to.emit1(op, {list}, {{"value", value.read_only()}}, node.wants(0) ? node.output(0) : "");
  to.bind(node, 0, with_extents(to, made, list));
}

/// The op that PyTorch wrote below opset 9 for states with a row for each sequence of its input; it never was in the standard.
void constant_fill(Importer& to, const Node& node, const char* op) {
  if (!node.integers("extra_shape").value_or(Ints{}).empty()) throw UnsupportedError("attribute extra_shape: expected none, found some");
  const DType dtype = dtype_of_onnx(static_cast<int>(node.integer("dtype", onnx::TensorProto::FLOAT)), "attribute dtype");
  const VarId like = to.in(node, 0);
  const VarId dims = node.flag("input_as_shape", false) ? like : to.emit1("shape", {like});
  to.give(node, op, {dims}, {{"value", scalar_of(dtype, node.real("value", 0)).reshape(DDim{1}).read_only()}});
}

constexpr Rule shape_table[] = {
    {"Transpose", transpose, "transpose"},
    {"Reshape", reshape},
    {"Squeeze", squeeze, "squeeze"},
    {"Unsqueeze", unsqueeze, "unsqueeze"},
    {"Flatten", flatten, "flatten"},
    {"Shape", shape, "shape"},
    {"Size", size, "size"},
    {"Expand", expand, "expand"},
    {"Tile", tile, "tile"},
    {"Range", range, "range"},
    {"Constant", constant},
    {"ConstantOfShape", constant_of_shape, "constant_of_shape"},
    {"ConstantFill", constant_fill, "constant_of_shape"},
};

}  // namespace

std::span<const Rule> shape_rules() { return shape_table; }

}  // namespace millrace::importing
