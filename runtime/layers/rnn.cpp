// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/rnn.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gates.h>
#include <millrace/runtime/layers/internal/cells.h>

namespace millrace::layers {

using namespace internal;

namespace {

std::int64_t hidden_of(const std::string& layer, const RnnWeights& weights) {
  for (const Tensor* matrix : {&weights.input, &weights.recurrent})
    if (matrix->rank() != 2) throw ShapeError(layer + ": expected matrices W [C, H] and R [H, H], found " + matrix->to_string());
  const std::int64_t hidden = weights.recurrent.dim(0);
  expect_dims(layer, "input", weights.input, {weights.input.dim(0), hidden});
  expect_dims(layer, "recurrent", weights.recurrent, {hidden, hidden});
  if (weights.bias) expect_dims(layer, "bias", *weights.bias, {hidden});
  return hidden;
}

/// The step of `weights`, whose parameters it appends here.
Cell cell_of(const std::string& name, const RnnWeights& weights, const RnnOptions& options) {
  const Matrix w = matrix(name + "_input", weights.input, options.weights);
  const Matrix r = matrix(name + "_recurrent", weights.recurrent, options.weights);
  const Var bias = parameter(name + "_bias", weights.bias);
  return [w, r, bias, options](const Var& x, const std::vector<Var>& state) {
    if (state.size() != 1) throw ProgramError(options.name + ": expected the state h, found " + std::to_string(state.size()) + " states");
    const Var next = apply(options.activation, clipped(preactivation(x, w, state[0], r, bias), options.clip));
    return CellStep{next, {next}};
  };
}

}  // namespace

Cell rnn_cell(const RnnWeights& weights, const RnnOptions& options) {
  hidden_of(options.name, weights);
  return cell_of(options.name, weights, options);
}

RnnResult rnn(const Sequences& sequences, const std::vector<RnnWeights>& weights, const RnnOptions& options, const std::vector<Var>& h) {
  const auto run = [&](std::size_t k, const Sequences& over, bool reverse) {
    const std::string name = options.name + "_" + std::to_string(k);
    const std::int64_t hidden = hidden_of(name, weights[k]);
    const Cell cell = cell_of(name, weights[k], options);
    return unroll(cell, over, {{hidden, initial(h, k, weights.size(), options.name)}}, reverse);
  };
  const Stacked made = stack(layers_of(options.name, weights.size(), options.direction), options.direction, sequences, run);
  RnnResult result{made.output, {}};
  for (const std::vector<Var>& last : made.last) result.h.push_back(last[0]);
  return result;
}

RnnWeights rnn_from_pytorch(const Tensor& weight_ih, const Tensor& weight_hh, const std::optional<Tensor>& bias_ih,
                            const std::optional<Tensor>& bias_hh) {
  return {transposed(weight_ih), transposed(weight_hh), summed(bias_ih, bias_hh)};
}

RnnWeights rnn_from_onnx(const Tensor& w, const Tensor& r, const std::optional<Tensor>& b, std::int64_t direction) {
  RnnWeights made{transposed(direction_of(w, direction)), transposed(direction_of(r, direction)), std::nullopt};
  if (!b) return made;
  const Tensor both = direction_of(*b, direction);
  const std::int64_t half = both.dim(0) / 2;
  made.bias = summed(both.rows(0, half), both.rows(half, 2 * half));
  return made;
}

RnnWeights rnn_from_keras(const Tensor& kernel, const Tensor& recurrent_kernel, const std::optional<Tensor>& bias) {
  return {kernel, recurrent_kernel, bias};
}

}  // namespace millrace::layers
