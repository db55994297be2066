// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/export/with_onnx/rules.h>

namespace millrace::exporting {
namespace {

std::int64_t axis_of(const Op& op, std::int64_t otherwise) { return op.attributes.get_or("axis", otherwise); }

/// An axis that ONNX counts from 0 too.
void along(Exporter& to, const Op& op, const char* onnx) { to.give(op, onnx, to.all_in(op), {{"axis", axis_of(op, 0)}}); }
void same(Exporter& to, const Op& op, const char* onnx) { to.give(op, onnx, to.all_in(op)); }

/// An input of integers as i64, which is what ONNX wants where extents and pads stand.
std::string long_in(Exporter& to, const Op& op, std::size_t input) {
  const std::string value = to.in(op, input);
  return to.type(op, input).dtype == DType::i64 ? value : to.node("Cast", {value}, {{"to", std::int64_t{onnx_type(DType::i64)}}});
}

void constant(Exporter& to, const Op& op, const char*) { to.name(op.outputs[0]); }

void constant_of_shape(Exporter& to, const Op& op, const char* onnx) {
  const Tensor value = op.attributes.get_or("value", Tensor::scalar(0.0f));
  to.give(op, onnx, {long_in(to, op, 0)}, {{"value", value.copy_to(CpuPlace{}).reshape(DDim{1})}});
}

void range(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, {to.scalar(op.inputs[0]), to.scalar(op.inputs[1]), to.scalar(op.inputs[2])});
}

void one_hot(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, {to.in(op, 0), to.scalar(op.inputs[1]), to.in(op, 2)}, {{"axis", axis_of(op, -1)}});
}

void shape(Exporter& to, const Op& op, const char* onnx) {
  Settings settings{{"start", op.attributes.get_or("start", std::int64_t{0})}};
  if (op.attributes.has("end")) settings.emplace_back("end", op.attributes.get<std::int64_t>("end"));
  to.give(op, onnx, to.all_in(op), settings);
}

void transpose(Exporter& to, const Op& op, const char* onnx) {
  const Ints perm = op.attributes.get_or("perm", Ints{});
  to.give(op, onnx, to.all_in(op), perm.empty() ? Settings{} : Settings{{"perm", perm}});
}

/// ONNX's permutation is an attribute.
void transpose_by(Exporter& to, const Op& op, const char* onnx) {
  const Tensor* perm = to.program().constant(op.inputs[1]);
  if (perm == nullptr)
    throw UnsupportedError("op transpose_by: expected a permutation that is constant, which ONNX can hold, found one that is computed");
  Ints axes;
  for (std::int64_t i = 0; i < perm->elements(); ++i) {
    const auto axis = static_cast<std::int64_t>((*perm)[make_ddim({i})]);
    axes.push_back(axis < 0 ? axis + perm->elements() : axis);
  }
  to.give(op, onnx, {to.in(op, 0)}, {{"perm", axes}});
}

void reshape(Exporter& to, const Op& op, const char* onnx) { to.give(op, onnx, {to.in(op, 0), to.ints(op.attributes.get<Ints>("shape"))}); }

void reshape_to(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, {to.in(op, 0), long_in(to, op, 1)}, {{"allowzero", std::int64_t{op.attributes.get_or("allowzero", false) ? 1 : 0}}});
}

void squeeze(Exporter& to, const Op& op, const char* onnx) {
  const Ints axes = op.attributes.get_or("axes", Ints{});
  to.give(op, onnx, {to.in(op, 0), axes.empty() ? std::string() : to.ints(axes)});
}

void flatten(Exporter& to, const Op& op, const char* onnx) { to.give(op, onnx, to.all_in(op), {{"axis", axis_of(op, 1)}}); }

void split(Exporter& to, const Op& op, const char* onnx) {
  const Names made =
      to.nodes(onnx, {to.in(op, 0), to.ints(op.attributes.get<Ints>("sizes"))}, op.outputs.size(), {{"axis", axis_of(op, 0)}});
  for (std::size_t i = 0; i < made.size(); ++i) to.bind(op.outputs[i], made[i]);
}

void slice(Exporter& to, const Op& op, const char* onnx) {
  const auto list = [&](const char* name) {
    return op.attributes.has(name) && !op.attributes.get<Ints>(name).empty() ? to.ints(op.attributes.get<Ints>(name)) : std::string();
  };
  to.give(
      op, onnx,
      {to.in(op, 0), to.ints(op.attributes.get<Ints>("starts")), to.ints(op.attributes.get<Ints>("ends")), list("axes"), list("steps")});
}

void reverse(Exporter& to, const Op& op, const char*) { to.bind(op.outputs[0], to.flipped(to.in(op, 0), axis_of(op, 0))); }

std::string mode_of(Exporter& to, const Op& op) {
  const std::string mode = op.attributes.get_or("mode", std::string("constant"));
  if (mode == "wrap") to.need_opset(19);
  return mode;
}

void pad(Exporter& to, const Op& op, const char* onnx) {
  const std::string value = to.number(to.type(op, 0).dtype, op.attributes.get_or("value", 0.0));
  to.give(op, onnx, {to.in(op, 0), to.ints(op.attributes.get<Ints>("pads")), value}, {{"mode", mode_of(to, op)}});
}

void pad_by(Exporter& to, const Op& op, const char* onnx) {
  const std::string value = Exporter::has(op, 2) ? to.scalar(op.inputs[2]) : std::string();
  to.give(op, onnx, {to.in(op, 0), long_in(to, op, 1), value}, {{"mode", mode_of(to, op)}});
}

void by_extents(Exporter& to, const Op& op, const char* onnx) { to.give(op, onnx, {to.in(op, 0), long_in(to, op, 1)}); }

/// Along axis 0.
void embedding(Exporter& to, const Op& op, const char* onnx) { to.give(op, onnx, to.all_in(op)); }

void gather_nd(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, {to.in(op, 0), long_in(to, op, 1)}, {{"batch_dims", op.attributes.get_or("batch_dims", std::int64_t{0})}});
}

void scatter_nd(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, {to.in(op, 0), long_in(to, op, 1), to.in(op, 2)},
          {{"reduction", op.attributes.get_or("reduction", std::string("none"))}});
}

void scatter_elements(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, to.all_in(op), {{"axis", axis_of(op, 0)}, {"reduction", op.attributes.get_or("reduction", std::string("none"))}});
}

void top_k(Exporter& to, const Op& op, const char* onnx) {
  const std::string count = to.node("Reshape", {long_in(to, op, 1), to.ints({1})});
  const Names made = to.nodes(onnx, {to.in(op, 0), count}, 2,
                              {{"axis", axis_of(op, -1)}, {"largest", std::int64_t{op.attributes.get_or("largest", true) ? 1 : 0}}});
  for (std::size_t i = 0; i < 2; ++i) to.bind(op.outputs[i], made[i]);
}

constexpr Rule shape_table[] = {
    {"constant", constant},
    {"constant_of_shape", constant_of_shape, "ConstantOfShape"},
    {"range", range, "Range"},
    {"one_hot", one_hot, "OneHot"},
    {"shape", shape, "Shape"},
    {"size", same, "Size"},
    {"transpose", transpose, "Transpose"},
    {"transpose_by", transpose_by, "Transpose"},
    {"reshape", reshape, "Reshape"},
    {"reshape_to", reshape_to, "Reshape"},
    {"squeeze", squeeze, "Squeeze"},
    {"unsqueeze", squeeze, "Unsqueeze"},
    {"flatten", flatten, "Flatten"},
    {"concat", along, "Concat"},
    {"split", split, "Split"},
    {"slice", slice, "Slice"},
    {"slice_by", same, "Slice"},
    {"reverse", reverse},
    {"pad", pad, "Pad"},
    {"pad_by", pad_by, "Pad"},
    {"expand", by_extents, "Expand"},
    {"tile", by_extents, "Tile"},
    {"gather", along, "Gather"},
    {"embedding", embedding, "Gather"},
    {"gather_elements", along, "GatherElements"},
    {"gather_nd", gather_nd, "GatherND"},
    {"scatter_nd", scatter_nd, "ScatterND"},
    {"scatter_elements", scatter_elements, "ScatterElements"},
    {"top_k", top_k, "TopK"},
    {"non_zero", same, "NonZero"},
};

}  // namespace

std::span<const Rule> shape_rules() { return shape_table; }

}  // namespace millrace::exporting
