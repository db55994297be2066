// SPDX-License-Identifier: Apache-2.0
#include <bench/library/spelled_cells.h>

#include <cmath>
#include <string>
#include <vector>

#include <bench/library/lstm_problem.h>
#include <millrace/kernels/cast.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/tensor/device.h>

namespace millrace::bench {
namespace {

using build::Var;
using layers::CellStep;

Var weights(const std::string& name, std::int64_t from, std::int64_t to, std::uint64_t seed, DType dtype) {
  CpuDevice host;
  return build::parameter(
      name, millrace::cast(random_tensor(DDim{from, to}, seed, 1 / std::sqrt(static_cast<float>(from))), dtype, host.stream(0)));
}
/// Rows x, f32, times weights: in the weights' dtype, with sums of f32.
Var product(const Var& x, const Var& w) {
  const DType dtype = w.type().dtype;
  return dtype == DType::f32 ? build::matmul(x, w) : build::matmul(build::cast(x, dtype), w, DType::f32);
}
Var vector(const std::string& name, std::int64_t size, std::uint64_t seed) {
  return build::parameter(name, random_tensor(DDim{size}, seed, 0.1f));
}

/// c' and h' of the four blocks of `a`; `look` adds what a gate sees of the old or new c.
CellStep lstm_rest(const std::vector<Var>& a, const Var& c, const std::vector<Var>& peepholes = {}) {
  using namespace build;
  const bool looks = !peepholes.empty();
  const Var i = sigmoid(looks ? a[0] + peepholes[0] * c : a[0]), f = sigmoid(looks ? a[1] + peepholes[1] * c : a[1]);
  const Var next = f * c + i * tanh(a[2]);
  const Var o = sigmoid(looks ? a[3] + peepholes[2] * next : a[3]);
  const Var h = o * tanh(next);
  return {h, {h, next}};
}

layers::Cell spelled_lstm(std::int64_t h, bool peeps, DType products) {
  const Var w = weights("w", h, 4 * h, 1, products), r = weights("r", h, 4 * h, 2, products), b = vector("b", 4 * h, 3);
  std::vector<Var> p;
  if (peeps) p = {vector("p_i", h, 4), vector("p_f", h, 5), vector("p_o", h, 6)};
  return [=](const Var& x, const std::vector<Var>& s) {
    return lstm_rest(build::split((product(s[0], r) + b) + product(x, w), -1, {h, h, h, h}), s[1], p);
  };
}

layers::Cell layer_norm_lstm(std::int64_t h, DType products) {
  using namespace build;
  const Var w = weights("w", h, 4 * h, 1, products), r = weights("r", h, 4 * h, 2, products), b = vector("b", 4 * h, 3);
  const Var scale_x = vector("scale_x", 4 * h, 4), scale_h = vector("scale_h", 4 * h, 5), zero = vector("zero", 4 * h, 6);
  const Var scale_c = vector("scale_c", h, 7), bias_c = vector("bias_c", h, 8);
  return [=](const Var& x, const std::vector<Var>& s) {
    const Var sum = (layer_norm(product(s[0], r), scale_h, zero) + b) + layer_norm(product(x, w), scale_x, zero);
    const std::vector<Var> a = split(sum, -1, {h, h, h, h});
    const Var c = sigmoid(a[1]) * s[1] + sigmoid(a[0]) * tanh(a[2]);
    const Var next = sigmoid(a[3]) * tanh(layer_norm(c, scale_c, bias_c));
    return CellStep{next, {next, c}};
  };
}

layers::Cell gru(std::int64_t h, bool reset_after, DType products) {
  using namespace build;
  const Var w = weights("w", h, 3 * h, 1, products), b = vector("b", 3 * h, 2);
  const Var r = weights("r", h, 3 * h, 3, products), r_gates = weights("r_gates", h, 2 * h, 4, products),
            r_n = weights("r_n", h, h, 5, products);
  return [=](const Var& x, const std::vector<Var>& s) {
    const std::vector<Var> a = split(product(x, w) + b, -1, {h, h, h});
    const std::vector<Var> of_h = reset_after ? split(product(s[0], r), -1, {h, h, h}) : split(product(s[0], r_gates), -1, {h, h});
    const Var reset = sigmoid(of_h[0] + a[0]), z = sigmoid(of_h[1] + a[1]);
    const Var n = tanh(a[2] + (reset_after ? reset * of_h[2] : product(reset * s[0], r_n)));
    const Var next = z * s[0] + (1.0 - z) * n;
    return CellStep{next, {next}};
  };
}

layers::Cell minimal_gated_unit(std::int64_t h, DType products) {
  using namespace build;
  const Var w = weights("w", h, 2 * h, 1, products), b = vector("b", 2 * h, 2), u_f = weights("u_f", h, h, 3, products),
            u_h = weights("u_h", h, h, 4, products);
  return [=](const Var& x, const std::vector<Var>& s) {
    const std::vector<Var> a = split(product(x, w) + b, -1, {h, h});
    const Var f = sigmoid(product(s[0], u_f) + a[0]);
    const Var next = (1.0 - f) * s[0] + f * tanh(a[1] + product(f * s[0], u_h));
    return CellStep{next, {next}};
  };
}

const SpelledCell cells[] = {
    {"LSTM spelled out", 4, 2, [](std::int64_t h, DType products) { return spelled_lstm(h, false, products); }},
    {"peephole LSTM", 4, 2, [](std::int64_t h, DType products) { return spelled_lstm(h, true, products); }},
    {"layer-norm LSTM", 4, 2, layer_norm_lstm},
    {"GRU, reset after", 3, 1, [](std::int64_t h, DType products) { return gru(h, true, products); }},
    {"GRU, reset before", 3, 1, [](std::int64_t h, DType products) { return gru(h, false, products); }},
    {"minimal gated unit", 2, 1, minimal_gated_unit},
};

}  // namespace

std::span<const SpelledCell> spelled_cells() { return cells; }

Program program_of(const SpelledCell& cell, std::int64_t hidden, DType products) {
  Program program;
  build::Guard guard(program);
  const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, hidden}, 1));
  const std::vector<layers::CellState> states(cell.states, layers::CellState{hidden});
  build::output("y", layers::unroll(cell.make(hidden, products), {x}, states).output);
  return program;
}

}  // namespace millrace::bench
