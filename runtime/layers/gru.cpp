// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/gru.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gates.h>
#include <millrace/runtime/layers/internal/cells.h>

namespace millrace::layers {
namespace {

using namespace internal;

std::int64_t hidden_of(const std::string& layer, const GruWeights& weights) {
  for (const Tensor* matrix : {&weights.input, &weights.recurrent})
    if (matrix->rank() != 2) throw ShapeError(layer + ": expected matrices W [C, 3H] and R [H, 3H], found " + matrix->to_string());
  refuse_turned(layer, weights.recurrent, 3);
  const std::int64_t hidden = weights.recurrent.dim(0);
  expect_dims(layer, "input", weights.input, {weights.input.dim(0), 3 * hidden});
  expect_dims(layer, "recurrent", weights.recurrent, {hidden, 3 * hidden});
  if (weights.bias) expect_dims(layer, "bias", *weights.bias, {3 * hidden});
  if (weights.recurrent_bias) expect_dims(layer, "recurrent_bias", *weights.recurrent_bias, {3 * hidden});
  return hidden;
}

/// A slice of units of the last axis.
std::optional<Tensor> units(const std::optional<Tensor>& w, std::int64_t begin, std::int64_t end) {
  return w ? std::optional(w->slice(w->rank() - 1, begin, end)) : std::nullopt;
}

GruParameters parameters_of(const std::string& name, const GruWeights& weights, std::int64_t hidden, std::optional<DType> dtype) {
  return {matrix(name + "_input", weights.input, dtype),
          parameter(name + "_bias", weights.bias),
          matrix(name + "_recurrent_gates", *units(weights.recurrent, 0, 2 * hidden), dtype),
          parameter(name + "_recurrent_gates_bias", units(weights.recurrent_bias, 0, 2 * hidden)),
          matrix(name + "_recurrent_candidate", *units(weights.recurrent, 2 * hidden, 3 * hidden), dtype),
          parameter(name + "_recurrent_candidate_bias", units(weights.recurrent_bias, 2 * hidden, 3 * hidden))};
}

}  // namespace

Var internal::gru_step(const Var& x, const Var& h, const GruParameters& p, std::int64_t hidden, const GruOptions& options) {
  const auto affine = [](const Var& of, const Matrix& w, const Var& bias) {
    const Var made = product(of, w);
    return bias.defined() ? made + bias : made;
  };
  const std::vector<Var> projected = build::split(affine(x, p.input, p.bias), -1, {2 * hidden, hidden});
  const Var sums = affine(h, p.gates, p.gates_bias) + projected[0];
  const std::vector<Var> gates = pieces(apply(options.gate, clipped(sums, options.clip)), 2, hidden);
  const Var& r = gates[0];
  const Var& z = gates[1];
  const Var recurrent =
      options.reset == GruReset::after ? r * affine(h, p.candidate, p.candidate_bias) : affine(r * h, p.candidate, p.candidate_bias);
  const Var n = apply(options.candidate, clipped(projected[1] + recurrent, options.clip));
  const bool kept = options.keeps == GruKeeps::z;
  return kept ? z * h + complement(z) * n : complement(z) * h + z * n;
}

namespace {

/// The step of `weights`, whose parameters it appends here.
Cell cell_of(const std::string& name, const GruWeights& weights, std::int64_t hidden, const GruOptions& options) {
  return [p = parameters_of(name, weights, hidden, options.weights), hidden, options](const Var& x, const std::vector<Var>& state) {
    if (state.size() != 1) throw ProgramError(options.name + ": expected the state h, found " + std::to_string(state.size()) + " states");
    const Var next = gru_step(x, state[0], p, hidden, options);
    return CellStep{next, {next}};
  };
}

}  // namespace

Cell gru_cell(const GruWeights& weights, const GruOptions& options) {
  return cell_of(options.name, weights, hidden_of(options.name, weights), options);
}

GruResult gru(const Sequences& sequences, const std::vector<GruWeights>& weights, const GruOptions& options, const std::vector<Var>& h) {
  const auto run = [&](std::size_t k, const Sequences& over, bool reverse) {
    const std::string name = options.name + "_" + std::to_string(k);
    const std::int64_t hidden = hidden_of(name, weights[k]);
    return unroll(cell_of(name, weights[k], hidden, options), over, {{hidden, initial(h, k, weights.size(), options.name)}}, reverse);
  };
  const Stacked made = stack(layers_of(options.name, weights.size(), options.direction), options.direction, sequences, run);
  GruResult result{made.output, {}};
  for (const std::vector<Var>& last : made.last) result.h.push_back(last[0]);
  return result;
}

GruWeights gru_from_pytorch(const Tensor& weight_ih, const Tensor& weight_hh, const std::optional<Tensor>& bias_ih,
                            const std::optional<Tensor>& bias_hh) {
  return {transposed(weight_ih), transposed(weight_hh), bias_ih, bias_hh};
}

GruWeights gru_from_onnx(const Tensor& w, const Tensor& r, const std::optional<Tensor>& b, std::int64_t direction) {
  const auto ours = [](const Tensor& from, int axis) { return reorder_gates(from, axis, gate_order::onnx_gru, gate_order::gru); };
  GruWeights made{ours(transposed(direction_of(w, direction)), 1), ours(transposed(direction_of(r, direction)), 1), std::nullopt,
                  std::nullopt};
  if (b) {
    const Tensor both = direction_of(*b, direction);
    const std::int64_t half = both.dim(0) / 2;
    made.bias = ours(both.rows(0, half), 0);
    made.recurrent_bias = ours(both.rows(half, 2 * half), 0);
  }
  return made;
}

GruWeights gru_from_keras(const Tensor& kernel, const Tensor& recurrent_kernel, const std::optional<Tensor>& bias) {
  const auto ours = [](const Tensor& from, int axis) { return reorder_gates(from, axis, gate_order::onnx_gru, gate_order::gru); };
  GruWeights made{ours(kernel, 1), ours(recurrent_kernel, 1), std::nullopt, std::nullopt};
  if (!bias) return made;
  made.bias = ours(bias->rank() == 2 ? bias->select(0, 0) : *bias, 0);
  if (bias->rank() == 2) made.recurrent_bias = ours(bias->select(0, 1), 0);
  return made;
}

GruWeights gru_from_tensorflow(const Tensor& gates_kernel, const Tensor& gates_bias, const Tensor& candidate_kernel,
                               const Tensor& candidate_bias) {
  const bool matrices = gates_kernel.rank() == 2 && candidate_kernel.rank() == 2 && gates_kernel.dim(0) == candidate_kernel.dim(0);
  const std::int64_t hidden = matrices ? candidate_kernel.dim(1) : 0, features = matrices ? gates_kernel.dim(0) - hidden : 0;
  if (!matrices || features < 0 || gates_kernel.dim(1) != 2 * hidden)
    throw ShapeError("gru_from_tensorflow: expected kernels of [C + H, 2H] and [C + H, H], found " + gates_kernel.to_string() + " and " +
                     candidate_kernel.to_string());
  const Tensor both = joined({gates_kernel, candidate_kernel}, 1);
  return {both.rows(0, features), both.rows(features, both.dim(0)), joined({gates_bias, candidate_bias}, 0), std::nullopt};
}

GruWeights gru_from_fluid(const Tensor& projection, const Tensor& weight, const std::optional<Tensor>& bias) {
  const auto ours = [](const Tensor& from, int axis) { return reorder_gates(from, axis, gate_order::fluid_gru, gate_order::gru); };
  if (weight.rank() != 2 || weight.dim(1) != 3 * weight.dim(0))
    throw ShapeError("gru_from_fluid, weight: expected [H, 3H], found " + weight.to_string());
  const std::int64_t hidden = weight.dim(0);
  const Tensor flat = weight.copy_to(CpuPlace{}).reshape({3 * hidden * hidden});
  const Tensor gates = flat.rows(0, 2 * hidden * hidden).reshape({hidden, 2 * hidden});
  const Tensor candidate = flat.rows(2 * hidden * hidden, 3 * hidden * hidden).reshape({hidden, hidden});
  GruWeights made{ours(projection, 1), ours(joined({gates, candidate}, 1), 1), std::nullopt, std::nullopt};
  if (bias) made.bias = ours(bias->copy_to(CpuPlace{}).reshape({3 * hidden}), 0);
  return made;
}

}  // namespace millrace::layers
