// SPDX-License-Identifier: Apache-2.0

#include <millrace/runtime/models/export/with_onnx/activation.h>
#include <millrace/runtime/models/export/with_onnx/rules.h>
#include <millrace/runtime/program/ops/internal/unary_names.h>

namespace millrace::exporting {
namespace {

std::string cast_to(Exporter& to, const std::string& x, DType dtype) {
  return to.node("Cast", {x}, {{"to", std::int64_t{onnx_type(dtype)}}});
}

/// An input as `dtype`: ONNX multiplies like with like.
std::string as(Exporter& to, const Op& op, std::size_t input, DType dtype) {
  const std::string x = to.in(op, input);
  return to.type(op, input).dtype == dtype ? x : cast_to(to, x, dtype);
}

void matmul(Exporter& to, const Op& op, const char* onnx) {
  const DType dtype = op.attributes.get_or("to", to.type(op, 0).dtype);
  if (to.type(op, 0).dtype == to.type(op, 1).dtype && to.type(op, 0).dtype == dtype) return to.give(op, onnx, to.all_in(op));
  to.give(op, onnx, {as(to, op, 0, dtype), as(to, op, 1, dtype)});
}

/// kernels/int8.h, step by step.
void quantize_rows(Exporter& to, const Op& op, const char*) {
  const std::string x = to.in(op, 0);
  const auto number = [&](double value) { return to.number(DType::f32, value); };
  const std::string most = to.node("ReduceMax", {to.node("Abs", {x}), to.ints({-1})}, {{"keepdims", std::int64_t{1}}});
  const std::string none = to.node("Equal", {most, number(0)});
  const std::string factor = to.node("Where", {none, number(0), to.node("Div", {number(127), most})});
  const std::string steps = to.node("Round", {to.node("Mul", {x, factor})});
  const std::string held = to.node("Clip", {steps, number(-127), number(127)});
  to.bind(op.outputs[0], cast_to(to, held, DType::i8));
  to.bind(op.outputs[1], to.node("Div", {most, number(127)}));
}

void matmul_int8(Exporter& to, const Op& op, const char*) {
  const std::string sum = to.node("MatMul", {as(to, op, 0, DType::i32), as(to, op, 2, DType::i32)});
  const std::string scaled = to.node("Mul", {cast_to(to, sum, DType::f32), to.in(op, 1)});
  to.give(op, "Mul", {scaled, to.in(op, 3)});
}

/// kernels/round_to_bytes.h, step by step.
struct Bytes {
  std::string values;  ///< less their zero
  std::string scale;
  std::string bytes;
  std::string zero;
  Ints axes;  ///< that are 1 in scale and zero
};
Bytes bytes_of(Exporter& to, const Op& op) {
  const std::string x = to.in(op, 0);
  const auto number = [&](double value) { return to.number(DType::f32, value); };
  const std::int64_t first = op.attributes.get_or("axis", std::int64_t{0});
  Ints axes;
  for (std::int64_t axis = first; axis < to.type(op, 0).rank(); ++axis) axes.push_back(axis);
  const auto extreme = [&](const char* kind, const char* with) {
    return to.node(with, {axes.empty() ? x : to.node(kind, {x, to.ints(axes)}, {{"keepdims", std::int64_t{1}}}), number(0)});
  };
  const std::string low = extreme("ReduceMin", "Min");
  const std::string span = to.node("Sub", {extreme("ReduceMax", "Max"), low});
  const std::string scale = to.node("Where", {to.node("Equal", {span, number(0)}), number(1), to.node("Div", {span, number(255)})});
  const std::string zero = to.node("Round", {to.node("Clip", {to.node("Div", {to.node("Neg", {low}), scale}), number(0), number(255)})});
  const std::string moved = to.node("Add", {to.node("Round", {to.node("Div", {x, scale})}), zero});
  const std::string bytes = to.node("Clip", {moved, number(0), number(255)});
  return {to.node("Sub", {bytes, zero}), scale, bytes, zero, axes};
}

void round_to_bytes(Exporter& to, const Op& op, const char*) {
  const Bytes made = bytes_of(to, op);
  to.give(op, "Mul", {made.values, made.scale});
}

void matmul_bytes(Exporter& to, const Op& op, const char*) {
  const Bytes made = bytes_of(to, op);
  const std::string sum = to.node("MatMul", {cast_to(to, made.values, DType::i32), as(to, op, 1, DType::i32)});
  to.give(op, "Mul", {to.node("Mul", {cast_to(to, sum, DType::f32), made.scale}), to.in(op, 2)});
}

void quantize_bytes(Exporter& to, const Op& op, const char*) {
  const Bytes made = bytes_of(to, op);
  const auto front = [&](const std::string& x) { return made.axes.empty() ? x : to.node("Squeeze", {x, to.ints(made.axes)}); };
  to.bind(op.outputs[0], cast_to(to, made.bytes, DType::u8));
  to.bind(op.outputs[1], front(made.scale));
  to.bind(op.outputs[2], cast_to(to, front(made.zero), DType::u8));
}

void matmul_integer(Exporter& to, const Op& op, const char*) {
  std::string zero = as(to, op, 1, DType::i32);
  Ints behind;
  for (int axis = to.type(op, 1).rank(); axis < to.type(op, 0).rank(); ++axis) behind.push_back(axis);
  if (to.type(op, 1).rank() > 0) zero = to.node("Unsqueeze", {zero, to.ints(behind)});
  std::string weights = as(to, op, 2, DType::i32);
  if (op.inputs.size() > 3 && op.inputs[3] != no_var) weights = to.node("Sub", {weights, to.in(op, 3)});
  const Names factors{to.node("Sub", {as(to, op, 0, DType::i32), zero}), weights};
  if (op.inputs.size() <= 4 || op.inputs[4] == no_var) return to.give(op, "MatMul", factors);
  to.give(op, "Add", {to.node("MatMul", factors), to.in(op, 4)});
}

std::int64_t flag(const Op& op, const char* name, bool otherwise = false) { return op.attributes.get_or(name, otherwise) ? 1 : 0; }

void gemm(Exporter& to, const Op& op, const char* onnx) {
  Names inputs = to.all_in(op);
  inputs[1] = as(to, op, 1, to.type(op, 0).dtype);
  to.give(op, onnx, inputs,
          {{"alpha", op.attributes.get_or("alpha", 1.0)},
           {"beta", op.attributes.get_or("beta", 1.0)},
           {"transA", flag(op, "trans_a")},
           {"transB", flag(op, "trans_b")}});
}

void conv1d(Exporter& to, const Op& op, const char* onnx) {
  const auto one = [&](const char* name) { return Ints{op.attributes.get_or(name, std::int64_t{1})}; };
  to.give(op, onnx, to.all_in(op),
          {{"group", op.attributes.get_or("group", std::int64_t{1})},
           {"strides", one("stride")},
           {"dilations", one("dilation")},
           {"pads", op.attributes.get_or("pads", Ints{0, 0})}});
}

// ---- lstm_cell: gates i f g o, peepholes i f o ----

/// The functions of one cell.
struct Cell {
  Exporter& to;
  const Op& op;
  DType dtype;

  std::string plus(const std::string& a, const std::string& b) const { return to.node("Add", {a, b}); }
  std::string times(const std::string& a, const std::string& b) const { return to.node("Mul", {a, b}); }
  /// Function `which` (f, g, h).
  std::string apply(std::size_t which, const std::string& x) const {
    const auto names = op.attributes.get_or("activations", std::vector<std::string>{"sigmoid", "tanh", "tanh"});
    const ops::UnaryName* named = ops::find_activation(names.at(which));
    UnaryParams params = default_params(named->kind);
    const auto take = [&](const char* list, const char* has, double& number) {
      const auto given = op.attributes.get_or(list, std::vector<double>{});
      if (!given.empty() && has != nullptr) number = given.at(which);
    };
    take("alphas", named->alpha, params.alpha);
    take("betas", named->beta, params.beta);
    return activation(to, dtype, named->kind, params, x);
  }
  std::string gate(std::size_t which, std::string a) const {
    const double clip = op.attributes.get_or("clip", 0.0);
    if (clip > 0) a = to.node("Clip", {a, to.number(dtype, -clip), to.number(dtype, clip)});
    return apply(which, a);
  }
};

/// Inputs of the projected cell and the gates lack W, or W and R, in front of the bias.
void lstm_cell(Exporter& to, const Op& op, const char*) {
  const Cell cell{to, op, to.type(op, 0).dtype};
  const bool projected = op.type != "lstm_cell";
  const bool summed = op.type == "lstm_gates";
  const std::size_t bias = summed ? 3 : projected ? 4 : 5;
  std::string all = summed ? to.in(op, 1) : to.node("MatMul", {to.in(op, 1), as(to, op, bias - 1, cell.dtype)});
  if (Exporter::has(op, bias)) all = cell.plus(all, to.in(op, bias));
  all = cell.plus(all, projected ? to.in(op, 0) : to.node("MatMul", {to.in(op, 0), as(to, op, 3, cell.dtype)}));
  const Settings last{{"axis", std::int64_t{-1}}, {"num_outputs", std::int64_t{4}}};
  Names a = to.nodes("Split", {all}, 4, last);
  Names p;
  if (Exporter::has(op, bias + 1))
    p = to.nodes("Split", {to.in(op, bias + 1)}, 3, {{"axis", std::int64_t{0}}, {"num_outputs", std::int64_t{3}}});
  const std::string c = to.in(op, 2);
  for (std::size_t gate = 0; gate < 2 && !p.empty(); ++gate) a[gate] = cell.plus(a[gate], cell.times(p[gate], c));
  const std::string i = cell.gate(0, a[0]);
  const bool coupled = op.attributes.get_or("input_forget", false);
  const std::string f = coupled ? to.node("Sub", {to.number(cell.dtype, 1), i}) : cell.gate(0, a[1]);
  const std::string next = cell.plus(cell.times(f, c), cell.times(i, cell.gate(1, a[2])));
  if (!p.empty()) a[3] = cell.plus(a[3], cell.times(p[2], next));
  to.bind(op.outputs[0], cell.times(cell.gate(0, a[3]), cell.apply(2, next)));
  to.bind(op.outputs[1], next);
}

// ---- Reductions and norms ----

void reduce(Exporter& to, const Op& op, const char*) {
  static constexpr std::pair<std::string_view, const char*> kinds[] = {
      {"sum", "ReduceSum"},        {"mean", "ReduceMean"},
      {"max", "ReduceMax"},        {"min", "ReduceMin"},
      {"prod", "ReduceProd"},      {"l1", "ReduceL1"},
      {"l2", "ReduceL2"},          {"sum_square", "ReduceSumSquare"},
      {"log_sum", "ReduceLogSum"}, {"log_sum_exp", "ReduceLogSumExp"},
  };
  const std::string kind = op.attributes.get<std::string>("kind");
  const Ints axes = op.attributes.get_or("axes", Ints{});
  for (const auto& [name, onnx] : kinds)
    if (name == kind)
      return to.give(op, onnx, {to.in(op, 0), axes.empty() ? std::string() : to.ints(axes)}, {{"keepdims", flag(op, "keepdims", true)}});
  throw UnsupportedError("kind '" + kind + "' has no counterpart");
}

void arg(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, to.all_in(op),
          {{"axis", op.attributes.get_or("axis", std::int64_t{0})},
           {"keepdims", flag(op, "keepdims", true)},
           {"select_last_index", flag(op, "select_last")}});
}

void along_axis(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, to.all_in(op), {{"axis", op.attributes.get_or("axis", std::int64_t{-1})}});
}

void layer_norm(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, to.all_in(op),
          {{"axis", op.attributes.get_or("axis", std::int64_t{-1})}, {"epsilon", op.attributes.get_or("epsilon", 1e-5)}});
}

void cumsum(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, {to.in(op, 0), to.whole(op.attributes.get_or("axis", std::int64_t{0}))},
          {{"exclusive", flag(op, "exclusive")}, {"reverse", flag(op, "reverse")}});
}

constexpr Rule linear_table[] = {
    {"matmul", matmul, "MatMul"},
    {"gemm", gemm, "Gemm"},
    {"quantize_rows", quantize_rows},
    {"matmul_int8", matmul_int8},
    {"round_to_bytes", round_to_bytes},
    {"matmul_bytes", matmul_bytes},
    {"quantize_bytes", quantize_bytes},
    {"matmul_integer", matmul_integer},
    {"conv1d", conv1d, "Conv"},
    {"lstm_cell", lstm_cell},
    {"lstm_cell_projected", lstm_cell},
    {"lstm_gates", lstm_cell},
    {"reduce", reduce},
    {"argmax", arg, "ArgMax"},
    {"argmin", arg, "ArgMin"},
    {"softmax", along_axis, "Softmax"},
    {"log_softmax", along_axis, "LogSoftmax"},
    {"layer_norm", layer_norm, "LayerNormalization"},
    {"cumsum", cumsum, "CumSum"},
};

}  // namespace

std::span<const Rule> linear_rules() { return linear_table; }

}  // namespace millrace::exporting
