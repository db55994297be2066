// SPDX-License-Identifier: Apache-2.0
#include <array>

#include <millrace/runtime/export/with_onnx/activation.h>
#include <millrace/runtime/export/with_onnx/rules.h>
#include <millrace/runtime/ops/internal/unary_names.h>

namespace millrace::exporting {
namespace {

void matmul(Exporter& to, const Op& op, const char* onnx) { to.give(op, onnx, to.all_in(op)); }

std::int64_t flag(const Op& op, const char* name, bool otherwise = false) { return op.attributes.get_or(name, otherwise) ? 1 : 0; }

void gemm(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, to.all_in(op),
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

/// Inputs from W on, which the projected cell has not, stand one place further to the front there.
void lstm_cell(Exporter& to, const Op& op, const char*) {
  const Cell cell{to, op, to.type(op, 0).dtype};
  const bool projected = op.type == "lstm_cell_projected";
  const std::size_t r = projected ? 3 : 4;
  std::string all = to.node("MatMul", {to.in(op, 1), to.in(op, r)});
  if (Exporter::has(op, r + 1)) all = cell.plus(all, to.in(op, r + 1));
  all = cell.plus(all, projected ? to.in(op, 0) : to.node("MatMul", {to.in(op, 0), to.in(op, 3)}));
  const Settings last{{"axis", std::int64_t{-1}}, {"num_outputs", std::int64_t{4}}};
  Names a = to.nodes("Split", {all}, 4, last);
  Names p;
  if (Exporter::has(op, r + 2)) p = to.nodes("Split", {to.in(op, r + 2)}, 3, {{"axis", std::int64_t{0}}, {"num_outputs", std::int64_t{3}}});
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

constexpr Rule rules[] = {
    {"matmul", matmul, "MatMul"},
    {"gemm", gemm, "Gemm"},
    {"conv1d", conv1d, "Conv"},
    {"lstm_cell", lstm_cell},
    {"lstm_cell_projected", lstm_cell},
    {"reduce", reduce},
    {"argmax", arg, "ArgMax"},
    {"argmin", arg, "ArgMin"},
    {"softmax", along_axis, "Softmax"},
    {"log_softmax", along_axis, "LogSoftmax"},
    {"layer_norm", layer_norm, "LayerNormalization"},
    {"cumsum", cumsum, "CumSum"},
};

}  // namespace

std::span<const Rule> linear_rules() { return rules; }

}  // namespace millrace::exporting
