// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// ONNX Runtime's own ops, as its optimiser writes several of ONNX's.
namespace millrace::importing {
namespace {

/// x · sigmoid(α·x)
void quick_gelu(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const Formula f(to, to.type(x).dtype);
  const double alpha = node.real("alpha", 1.702f);
  to.give(node, "mul", {x, f.op("sigmoid", alpha == 1 ? x : f.times(x, alpha))});
}

void bias_add(Importer& to, const Node& node, const char*) {
  to.give(node, "add", {to.emit1("add", {to.in(node, 0), to.in(node, 1)}), to.in(node, 2)});
}

// ---- products

/// A factor of FusedMatMul. With the batch transposed, axis 0 is that of the rows: it goes behind those of the batch. A vector stays one.
VarId turned_factor(Importer& to, VarId x, bool transposed, bool batch) {
  if (!transposed && !batch) return x;
  const int rank = to.rank(x);
  if (rank < 2) return x;
  Ints perm(static_cast<std::size_t>(rank));
  std::iota(perm.begin(), perm.end(), 0);
  if (batch) std::rotate(perm.begin(), perm.begin() + 1, perm.end() - 1);
  if (transposed) std::swap(perm[perm.size() - 2], perm.back());
  return to.emit1("transpose", {x}, {{"perm", perm}});
}

/// α · A · B
void fused_matmul(Importer& to, const Node& node, const char*) {
  const VarId a = turned_factor(to, to.in(node, 0), node.flag("transA", false), node.flag("transBatchA", false));
  const VarId b = turned_factor(to, to.in(node, 1), node.flag("transB", false), node.flag("transBatchB", false));
  const double alpha = node.real("alpha", 1);
  if (alpha == 1) return to.give(node, "matmul", {a, b});
  const Formula f(to, to.type(a).dtype);
  to.give(node, "mul", {f.op("matmul", a, b), f.number(alpha)});
}

struct Activation {
  const char* onnx;
  const char* op;
  const char* numbers = "";  ///< "a": α; "b": β; "g": γ
};
constexpr Activation activations[] = {
    {"Relu", "relu"},
    {"Tanh", "tanh"},
    {"Sigmoid", "sigmoid"},
    {"Softplus", "softplus"},
    {"Softsign", "softsign"},
    {"LeakyRelu", "leaky_relu", "a"},
    {"Elu", "elu", "a"},
    {"ThresholdedRelu", "thresholded_relu", "a"},
    {"HardSigmoid", "hard_sigmoid", "ab"},
    {"Selu", "selu", "ag"},
};

/// A Gemm and the activation of its result, whose numbers are attributes, or ONNX's.
void fused_gemm(Importer& to, const Node& node, const char*) {
  const std::string name = node.text("activation", "");
  const auto* const found =
      std::find_if(std::begin(activations), std::end(activations), [&](const Activation& a) { return a.onnx == name; });
  if (!name.empty() && found == std::end(activations))
    throw UnsupportedError("attribute activation: expected an activation of ONNX that ONNX Runtime fuses, found " +
                           internal::printable(name));
  const VarId product = to.emit1("gemm", {to.in(node, 0), to.in(node, 1), to.in_or_none(node, 2)},
                                 {{"alpha", node.real("alpha", 1)},
                                  {"beta", node.real("beta", 1)},
                                  {"trans_a", node.flag("transA", false)},
                                  {"trans_b", node.flag("transB", false)}});
  if (name.empty()) return to.give(node, "identity", {product});
  Attributes attributes;
  for (const char* number : {"alpha", "beta", "gamma"}) {
    const std::string given = std::string("activation_") + number;
    if (std::string_view(found->numbers).find(number[0]) != std::string_view::npos && node.has_attribute(given))
      attributes.set(number, node.real(given, 0));
  }
  to.give(node, found->op, {product}, attributes);
}

// ---- norms over the last axis

VarId mean_of(const Formula& f, VarId x) { return f.reduced("mean", x, {-1}, true); }
VarId inverse_of(const Formula& f, VarId squares, double epsilon) { return f.op("reciprocal", f.op("sqrt", f.plus(squares, epsilon))); }

/// The sum of x, what was left out of the layers between, and perhaps a bias: the last output.
VarId skip_sum(Importer& to, const Node& node, std::size_t bias) {
  VarId sum = to.emit1("add", {to.in(node, 0), to.in(node, 1)});
  if (node.has(bias)) sum = to.emit1("add", {sum, to.in(node, bias)});
  to.bind(node, 3, sum);
  return sum;
}

void skip_layer_norm(Importer& to, const Node& node, const char*) {
  const VarId x = skip_sum(to, node, 4);
  const double epsilon = node.real("epsilon", 1e-5f);
  to.give(node, "layer_norm", {x, to.in(node, 2), to.in_or_none(node, 3)}, {{"axis", std::int64_t{-1}}, {"epsilon", epsilon}});
  if (!node.wants(1) && !node.wants(2)) return;
  const Formula f(to, computed_in(to.type(x).dtype));
  const VarId wide = f.taken(x), mean = mean_of(f, wide);
  to.bind(node, 1, mean);
  const VarId apart = f.minus(wide, mean);
  to.bind(node, 2, inverse_of(f, mean_of(f, f.times(apart, apart)), epsilon));
}

/// x / √(mean of squares + ε) · γ. There is no mean to give.
void skip_rms_norm(Importer& to, const Node& node, const char*) {
  const VarId x = skip_sum(to, node, 3);
  if (node.wants(1))
    throw UnsupportedError("expected no use of the mean, which is not computed, found " + internal::printable(node.output(1)));
  const DType dtype = to.type(x).dtype;
  const Formula f(to, computed_in(dtype));
  const VarId wide = f.taken(x);
  const VarId inverse = inverse_of(f, mean_of(f, f.times(wide, wide)), node.real("epsilon", 1e-5f));
  to.bind(node, 2, inverse);
  to.give(node, "identity", {f.cast(f.times(f.times(wide, inverse), f.taken(to.in(node, 2))), dtype)});
}

constexpr Rule fused_table[] = {
    {"com.microsoft.QuickGelu", quick_gelu},
    {"com.microsoft.BiasAdd", bias_add},
    {"com.microsoft.FusedMatMul", fused_matmul},
    {"com.microsoft.TransposeMatMul", fused_matmul},
    {"com.microsoft.FusedGemm", fused_gemm},
    {"com.microsoft.SkipLayerNormalization", skip_layer_norm},
    {"com.microsoft.SkipSimplifiedLayerNormalization", skip_rms_norm},
};

}  // namespace

std::span<const Rule> fused_rules() { return fused_table; }

}  // namespace millrace::importing
