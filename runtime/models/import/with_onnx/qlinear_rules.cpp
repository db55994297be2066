// SPDX-License-Identifier: Apache-2.0

#include <millrace/runtime/models/import/with_onnx/quantized.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// ONNX Runtime's own ops, as its static quantizer writes them: each tensor of 8 bits, behind it its scale and its zero point, one for all
/// elements. The values between are computed in f32.
namespace millrace::importing {
namespace {

VarId taken_back(Importer& to, const Node& node, std::size_t input) {
  expect_bytes(to, to.in(node, input));
  return dequantized(to, to.in(node, input), to.in(node, input + 1), to.in_or_none(node, input + 2), 0);
}

/// `x` as the first output, by the scale at input `scale` and the zero point behind it; without one in the dtype of `like`.
void give_bytes(Importer& to, const Node& node, VarId x, std::size_t scale, std::size_t like = 0) {
  const Formula f(to, DType::f32);
  const VarId zero = node.has(scale + 1) ? f.reshaped(to.in(node, scale + 1), {}) : no_var;
  const VarId scaled = f.over(f.taken(x), f.reshaped(f.taken(to.in(node, scale)), {}));
  to.give(node, "identity", {narrowed_to_bytes(to, f, scaled, zero, to.type(zero == no_var ? to.in(node, like) : zero).dtype)});
}

void qlinear_binary(Importer& to, const Node& node, const char* op) {
  const VarId a = taken_back(to, node, 0);
  give_bytes(to, node, to.emit1(op, {a, taken_back(to, node, 3)}), 6);
}

void qlinear_sigmoid(Importer& to, const Node& node, const char* op) { give_bytes(to, node, to.emit1(op, {taken_back(to, node, 0)}), 3); }

void qlinear_leaky_relu(Importer& to, const Node& node, const char* op) {
  give_bytes(to, node, to.emit1(op, {taken_back(to, node, 0)}, {{"alpha", node.real("alpha", 0.01f)}}), 3);
}

/// α · the scales of A and B over that of Y · (A · B + C), C in i32. B has a scale and a zero point for all or one for each column. f32 without a scale of Y.
void qgemm(Importer& to, const Node& node, const char*) {
  expect_bytes(to, to.in(node, 0));
  expect_bytes(to, to.in(node, 3));
  const bool turned_b = node.flag("transB", false);
  const VarType b_type = to.type(to.in(node, 3));
  const Formula wide(to, exact_sums(b_type.rank() == 2 ? (*b_type.shape)[turned_b ? 1 : 0] : DDim::unknown));
  const auto one_or_columns = [&](const Formula& f, std::size_t input) {
    const VarId given = f.taken(to.in(node, input));
    return to.type(given).is_scalar() ? f.reshaped(given, {}) : given;
  };
  const auto factor = [&](std::size_t input, bool turned) {
    VarId x = wide.taken(to.in(node, input));
    if (turned) x = to.emit1("transpose", {x}, {{"perm", Ints{1, 0}}});
    return node.has(input + 2) ? wide.minus(x, one_or_columns(wide, input + 2)) : x;
  };
  ByteFactor columns = byte_factor(to, node, 3, 5);
  columns.turned = turned_b;
  // C [n] or [1, n] is added to the sums as they are.
  const VarType* const c = node.has(6) ? &to.type(to.in(node, 6)) : nullptr;
  const std::int64_t n = b_type.rank() == 2 ? (*b_type.shape)[turned_b ? 0 : 1] : DDim::unknown;
  const bool by_column = c != nullptr && c->is_static() && c->rank() > 0 && n >= 0 && c->shape->elements() == n && (*c->shape)[-1] == n &&
                         c->dtype == DType::i32;
  VarId sums = no_var;
  if (!node.flag("transA", false) && (c == nullptr || by_column))
    sums = byte_sums(to, byte_factor(to, node, 0, 2), columns,
                     c == nullptr ? no_var : to.emit1("reshape", {to.in(node, 6)}, {{"shape", Ints{-1}}}));
  if (sums == no_var) {
    sums = wide.op("matmul", factor(0, node.flag("transA", false)), factor(3, turned_b));
    if (node.has(6)) sums = wide.plus(sums, wide.taken(to.in(node, 6)));
  }
  const Formula f(to, DType::f32);
  VarId scales = f.times(one_or_columns(f, 1), one_or_columns(f, 4));
  if (node.real("alpha", 1) != 1) scales = f.times(scales, node.real("alpha", 1));
  if (!node.has(7)) return to.give(node, "identity", {f.times(f.taken(sums), scales)});
  const VarId zero = node.has(8) ? f.reshaped(to.in(node, 8), {}) : no_var;
  const VarId made = f.times(f.taken(sums), f.over(scales, f.reshaped(f.taken(to.in(node, 7)), {})));
  to.give(node, "identity", {narrowed_to_bytes(to, f, made, zero, to.type(zero == no_var ? to.in(node, 0) : zero).dtype)});
}

/// `opset`: that of the Softmax which the node stands for. Up to 12 the axes from `axis` on are one.
void qlinear_softmax(Importer& to, const Node& node, const char*) {
  const VarId x = taken_back(to, node, 0);
  const std::int64_t opset = node.integer("opset", 0);
  if (opset < 1) throw ProgramError("attribute opset: expected that of a Softmax, found " + std::to_string(opset));
  const std::int64_t axis = node.integer("axis", opset < 13 ? 1 : -1);
  if (opset >= 13) return give_bytes(to, node, to.emit1("softmax", {x}, {{"axis", axis}}), 3);
  const VarId made = to.emit1("softmax", {to.emit1("flatten", {x}, {{"axis", axis}})}, {{"axis", std::int64_t{-1}}});
  give_bytes(to, node, to.emit1("reshape_to", {made, to.emit1("shape", {x})}, {{"allowzero", true}}), 3);
}

/// Scale and zero point of Y, then each input with its own.
void qlinear_concat(Importer& to, const Node& node, const char*) {
  if (!node.has_attribute("axis")) throw ParseError("attribute axis: expected one, found none");
  if (node.inputs() < 4 || (node.inputs() - 2) % 3 != 0)
    throw ProgramError("expected a scale and a zero point, and three inputs for each tensor, found " + std::to_string(node.inputs()) +
                       " inputs");
  std::vector<VarId> parts;
  for (std::size_t input = 2; input < node.inputs(); input += 3) parts.push_back(taken_back(to, node, input));
  give_bytes(to, node, to.emit1("concat", parts, {{"axis", node.integer("axis", 0)}}), 0, 2);
}

void qlinear_where(Importer& to, const Node& node, const char*) {
  const VarId yes = taken_back(to, node, 1);
  give_bytes(to, node, to.emit1("where", {to.in(node, 0), yes, taken_back(to, node, 4)}), 7, 1);
}

VarId pooled(Importer& to, const Node& node, VarId x, bool whole) {
  if (!whole) return averaged(to, node, x);
  Ints axes;
  for (int axis = 2; axis < to.rank(x); ++axis) axes.push_back(axis);
  return axes.empty() ? x : to.emit1("reduce", {x}, {{"kind", std::string("mean")}, {"axes", axes}, {"keepdims", true}});
}

void qlinear_pool(Importer& to, const Node& node, const char* windows) {
  const bool whole = *windows == '\0', last = node.flag("channels_last", false);
  const VarId x = taken_back(to, node, 0);
  const VarId made = pooled(to, node, last ? channels_first(to, x) : x, whole);
  give_bytes(to, node, last ? channels_last(to, made) : made, 3);
}

constexpr Rule qlinear_table[] = {
    {"com.microsoft.QLinearAdd", qlinear_binary, "add"},
    {"com.microsoft.QLinearMul", qlinear_binary, "mul"},
    {"com.microsoft.QLinearSigmoid", qlinear_sigmoid, "sigmoid"},
    {"com.microsoft.QLinearLeakyRelu", qlinear_leaky_relu, "leaky_relu"},
    {"com.microsoft.QLinearSoftmax", qlinear_softmax},
    {"com.microsoft.QLinearConcat", qlinear_concat},
    {"com.microsoft.QLinearWhere", qlinear_where},
    {"com.microsoft.QLinearAveragePool", qlinear_pool, "windows"},
    {"com.microsoft.QLinearGlobalAveragePool", qlinear_pool},
    {"com.microsoft.QGemm", qgemm},
};

}  // namespace

std::span<const Rule> qlinear_rules() { return qlinear_table; }

}  // namespace millrace::importing
