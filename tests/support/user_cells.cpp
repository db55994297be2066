// SPDX-License-Identifier: Apache-2.0
#include <support/user_cells.h>

#include <cmath>

#include <millrace/kernels/cast.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/tensor/device.h>
#include <reference/reference.h>

namespace millrace::testing {
namespace {

using build::Var;
using layers::CellStep;
using Vars = std::vector<Var>;

Tensor drawn(Random& random, const DDim& dims, double scale) {
  reference::Values made{dims, {}};
  for (std::int64_t i = 0; i < dims.elements(); ++i) made.at.push_back(scale * static_cast<double>(random.real()));
  return reference::tensor(made, DType::f32);
}
Var matrix(Random& random, const std::string& name, std::int64_t rows, std::int64_t columns) {
  return build::parameter(name, drawn(random, DDim{rows, columns}, 1.5 / std::sqrt(static_cast<double>(rows))));
}
Var vector(Random& random, const std::string& name, std::int64_t size) { return build::parameter(name, drawn(random, DDim{size}, 0.7)); }

Vars gates(const Var& sums, std::int64_t hidden, int count) {
  return build::split(sums, -1, std::vector<std::int64_t>(static_cast<std::size_t>(count), hidden));
}

UserCell::Built gru(Random& random, std::int64_t input, std::int64_t hidden, layers::GruReset reset) {
  const double scale = 1.5 / std::sqrt(static_cast<double>(hidden));
  const layers::GruWeights weights{drawn(random, DDim{input, 3 * hidden}, 1), drawn(random, DDim{hidden, 3 * hidden}, scale),
                                   drawn(random, DDim{3 * hidden}, 1), drawn(random, DDim{3 * hidden}, 1)};
  layers::GruOptions options;
  options.reset = reset;
  return {layers::gru_cell(weights, options), {{hidden}}};
}

Var narrow_matrix(Random& random, const std::string& name, std::int64_t rows, std::int64_t columns) {
  CpuDevice host;
  const Tensor wide = drawn(random, DDim{rows, columns}, 1.5 / std::sqrt(static_cast<double>(rows)));
  return build::parameter(name, millrace::cast(wide, DType::bf16, host.stream(0)));
}
/// Both factors in bf16, sums in f32.
Var narrow_product(const Var& x, const Var& weights) { return matmul(cast(x, DType::bf16), weights, DType::f32); }

UserCell::Built narrow_gru(Random& random, std::int64_t input, std::int64_t hidden) {
  const Var w = narrow_matrix(random, "W", input, 3 * hidden), r = narrow_matrix(random, "R", hidden, 3 * hidden);
  const Var b = vector(random, "b", 3 * hidden);
  return {[=](const Var& x, const Vars& s) {
            const Vars of_x = gates(narrow_product(x, w) + b, hidden, 3), of_h = gates(narrow_product(s[0], r), hidden, 3);
            const Var z = sigmoid(of_x[0] + of_h[0]), reset = sigmoid(of_x[1] + of_h[1]);
            const Var h = (1.0 - z) * tanh(of_x[2] + reset * of_h[2]) + z * s[0];
            return CellStep{h, {h}};
          },
          {{hidden}}};
}

/// A product of what another stage made, which is rounded on its way.
UserCell::Built narrow_minimal(Random& random, std::int64_t input, std::int64_t hidden) {
  const Var rf = narrow_matrix(random, "Rf", hidden, hidden), rh = narrow_matrix(random, "Rh", hidden, hidden);
  const Var w = matrix(random, "W", input, 2 * hidden);
  return {[=](const Var& x, const Vars& s) {
            const Vars of_x = gates(matmul(x, w), hidden, 2);
            const Var f = sigmoid(of_x[0] + narrow_product(s[0], rf));
            const Var h = (1.0 - f) * s[0] + f * tanh(of_x[1] + narrow_product(f * s[0], rh));
            return CellStep{h, {h}};
          },
          {{hidden}}};
}

UserCell::Built lstm(Random& random, std::int64_t input, std::int64_t hidden, bool peepholes) {
  const Var w = matrix(random, "W", input, 4 * hidden), r = matrix(random, "R", hidden, 4 * hidden), b = vector(random, "b", 4 * hidden);
  Var pi, pf, po;
  if (peepholes) pi = vector(random, "pi", hidden), pf = vector(random, "pf", hidden), po = vector(random, "po", hidden);
  return {[=](const Var& x, const Vars& s) {
            const Vars sums = gates(matmul(s[0], r) + b + matmul(x, w), hidden, 4);
            const Var i = sigmoid(peepholes ? sums[0] + pi * s[1] : sums[0]);
            const Var f = sigmoid(peepholes ? sums[1] + pf * s[1] : sums[1]);
            const Var c = f * s[1] + i * tanh(sums[2]);
            const Var o = sigmoid(peepholes ? sums[3] + po * c : sums[3]);
            const Var h = o * tanh(c);
            return CellStep{h, {h, c}};
          },
          {{hidden}, {hidden}}};
}

UserCell::Built layer_norm_lstm(Random& random, std::int64_t input, std::int64_t hidden) {
  const Var w = matrix(random, "W", input, 4 * hidden), r = matrix(random, "R", hidden, 4 * hidden);
  const Var wx = vector(random, "wx", 4 * hidden), bx = vector(random, "bx", 4 * hidden), wh = vector(random, "wh", 4 * hidden),
            bh = vector(random, "bh", 4 * hidden), wc = vector(random, "wc", hidden), bc = vector(random, "bc", hidden);
  return {[=](const Var& x, const Vars& s) {
            const Vars sums = gates(layer_norm(matmul(x, w), wx, bx) + layer_norm(matmul(s[0], r), wh, bh), hidden, 4);
            const Var c = sigmoid(sums[1]) * s[1] + sigmoid(sums[0]) * tanh(sums[2]);
            const Var h = sigmoid(sums[3]) * tanh(layer_norm(c, wc, bc));
            return CellStep{h, {h, c}};
          },
          {{hidden}, {hidden}}};
}

/// h of fewer units than c: o·tanh(c) times a matrix.
UserCell::Built projected_lstm(Random& random, std::int64_t input, std::int64_t hidden) {
  const std::int64_t cells = 2 * hidden;
  const Var w = matrix(random, "W", input, 4 * cells), r = matrix(random, "R", hidden, 4 * cells), p = matrix(random, "P", cells, hidden);
  return {[=](const Var& x, const Vars& s) {
            const Vars sums = gates(matmul(s[0], r) + matmul(x, w), cells, 4);
            const Var c = sigmoid(sums[1]) * s[1] + sigmoid(sums[0]) * tanh(sums[2]);
            const Var h = matmul(sigmoid(sums[3]) * tanh(c), p);
            return CellStep{h, {h, c}};
          },
          {{hidden}, {cells}}};
}

UserCell::Built minimal_gated(Random& random, std::int64_t input, std::int64_t hidden) {
  const Var w = matrix(random, "W", input, 2 * hidden), rf = matrix(random, "Rf", hidden, hidden),
            rh = matrix(random, "Rh", hidden, hidden);
  return {[=](const Var& x, const Vars& s) {
            const Vars of_x = gates(matmul(x, w), hidden, 2);
            const Var f = sigmoid(of_x[0] + matmul(s[0], rf));
            const Var h = (1.0 - f) * s[0] + f * tanh(of_x[1] + matmul(f * s[0], rh));
            return CellStep{h, {h}};
          },
          {{hidden}}};
}

/// sLSTM (arXiv 2405.04517, section 2.2): exponential gates, a normaliser n and a stabiliser m.
UserCell::Built slstm(Random& random, std::int64_t input, std::int64_t hidden) {
  const Var w = matrix(random, "W", input, 4 * hidden), r = matrix(random, "R", hidden, 4 * hidden), b = vector(random, "b", 4 * hidden);
  return {[=](const Var& x, const Vars& s) {
            const Vars sums = gates(matmul(x, w) + b + matmul(s[0], r), hidden, 4);
            const Var log_f = neg(build::call1("softplus", {neg(sums[1])}));
            const Var m = maximum(log_f + s[3], sums[0]);
            const Var i = exp(sums[0] - m), f = exp(log_f + s[3] - m);
            const Var c = f * s[1] + i * tanh(sums[2]);
            const Var n = f * s[2] + i;
            const Var h = sigmoid(sums[3]) * (c / maximum(n, build::constant(1e-6)));
            return CellStep{h, {h, c, n, m}};
          },
          {{hidden}, {hidden}, {hidden}, {hidden}}};
}

/// Groups of units that compete; the output is another value than the state.
UserCell::Built grouped(Random& random, std::int64_t input, std::int64_t hidden) {
  const Var w = matrix(random, "W", input, hidden), r = matrix(random, "R", hidden, hidden);
  return {[=](const Var& x, const Vars& s) {
            const Var sums = tanh(matmul(x, w) + matmul(s[0], r));
            const Var shares = softmax(build::reshape(sums, {-1, 2, hidden / 2}));
            const Var h = build::reshape(shares, {-1, hidden}) * s[0] + sums;
            return CellStep{relu(h), {h}};
          },
          {{hidden}}};
}

/// A gate for the whole row, from the mean of its units, and a count of how far it was open.
UserCell::Built gated_by_number(Random& random, std::int64_t input, std::int64_t hidden) {
  const Var w = matrix(random, "W", input, hidden), r = matrix(random, "R", hidden, hidden);
  return {[=](const Var& x, const Vars& s) {
            const Var sums = matmul(x, w) + matmul(s[0], r);
            const Var open = sigmoid(build::mean(sums, {-1}, true) + s[1]);
            const Var h = open * tanh(sums) + (1.0 - open) * s[0];
            return CellStep{h, {h, 0.5 * s[1] + open}};
          },
          {{hidden}, {1}}};
}

}  // namespace

const std::vector<UserCell>& user_cells() {
  using R = Random&;
  using I = std::int64_t;
  static const std::vector<UserCell> all{
      {"gru, reset after", 1, 1, false, [](R random, I input, I hidden) { return gru(random, input, hidden, layers::GruReset::after); }},
      {"gru, reset before", 2, 2, false, [](R random, I input, I hidden) { return gru(random, input, hidden, layers::GruReset::before); }},
      {"lstm of ops", 1, 1, false, [](R random, I input, I hidden) { return lstm(random, input, hidden, false); }},
      {"peephole lstm", 1, 1, false, [](R random, I input, I hidden) { return lstm(random, input, hidden, true); }},
      {"layer norm lstm", 3, 1, false, layer_norm_lstm},
      {"projected lstm", 2, 2, false, projected_lstm},
      {"minimal gated unit", 2, 2, false, minimal_gated},
      {"gru of bf16 products", 1, 1, true, narrow_gru},
      {"minimal gated unit of bf16 products", 2, 2, true, narrow_minimal},
      {"slstm", 1, 1, false, slstm},
      {"softmax over groups", 2, 1, false, grouped},
      {"gate of a whole row", 2, 1, false, gated_by_number}};
  return all;
}

}  // namespace millrace::testing
