// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <millrace/runtime/import/internal/printable.h>
#include <millrace/runtime/import/with_onnx/rules.h>

namespace millrace::importing {
namespace {

void transpose(Importer& to, const Node& node, const char* op) {
  Attributes attributes;
  if (const std::optional<Ints> perm = node.integers("perm")) attributes.set("perm", *perm);
  to.give(node, op, {to.in(node, 0)}, attributes);
}

void reshape(Importer& to, const Node& node, const char*) {
  const bool allow_zero = node.integer("allowzero", 0) != 0;
  const VarId x = to.in(node, 0);
  const std::optional<Ints> shape = to.known_integers(node, 1);
  if (shape && !allow_zero) return to.give(node, "reshape", {x}, {{"shape", *shape}});
  to.give(node, "reshape_to", {x, to.in(node, 1)}, {{"allowzero", allow_zero}});
}

/// Axes were an attribute up to opset 12.
Ints axes_of(Importer& to, const Node& node) {
  return to.opset() >= 13 ? to.needed_integers(node, 1, {}) : node.integers("axes").value_or(Ints{});
}

void squeeze(Importer& to, const Node& node, const char* op) { to.give(node, op, {to.in(node, 0)}, {{"axes", axes_of(to, node)}}); }

void unsqueeze(Importer& to, const Node& node, const char* op) {
  const Ints axes = axes_of(to, node);
  const VarId x = to.in(node, 0);
  if (axes.empty()) return to.give(node, "identity", {x});
  to.give(node, op, {x}, {{"axes", axes}});
}

void flatten(Importer& to, const Node& node, const char* op) { to.give(node, op, {to.in(node, 0)}, {{"axis", node.integer("axis", 1)}}); }

void shape(Importer& to, const Node& node, const char* op) {
  Attributes attributes;
  for (const char* name : {"start", "end"})
    if (node.has_attribute(name)) attributes.set(name, node.integer(name, 0));
  to.give(node, op, {to.in(node, 0)}, attributes);
}

void size(Importer& to, const Node& node, const char* op) { to.give(node, op, {to.in(node, 0)}); }

void expand(Importer& to, const Node& node, const char* op) { to.give(node, op, {to.in(node, 0), to.in(node, 1)}); }

void range(Importer& to, const Node& node, const char* op) { to.give(node, op, {to.in(node, 0), to.in(node, 1), to.in(node, 2)}); }

void constant(Importer& to, const Node& node, const char*) {
  if (const onnx::TensorProto* tensor = node.tensor("value")) return to.bind_constant(node, to.tensor_of(*tensor, "attribute value"));
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
  to.give(node, op, {to.in(node, 0)}, {{"value", value.read_only()}});
}

constexpr Rule rules[] = {
    {"Transpose", transpose, "transpose"},
    {"Reshape", reshape},
    {"Squeeze", squeeze, "squeeze"},
    {"Unsqueeze", unsqueeze, "unsqueeze"},
    {"Flatten", flatten, "flatten"},
    {"Shape", shape, "shape"},
    {"Size", size, "size"},
    {"Expand", expand, "expand"},
    {"Tile", expand, "tile"},
    {"Range", range, "range"},
    {"Constant", constant},
    {"ConstantOfShape", constant_of_shape, "constant_of_shape"},
};

}  // namespace

std::span<const Rule> shape_rules() { return rules; }

}  // namespace millrace::importing
