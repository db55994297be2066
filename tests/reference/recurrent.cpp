// SPDX-License-Identifier: Apache-2.0
#include <reference/recurrent.h>

#include <algorithm>
#include <cmath>

namespace millrace::reference {
namespace {

double dot(const GateMatrix& w, char gate, std::int64_t unit, const Numbers& x) {
  double sum = 0;
  for (std::size_t k = 0; k < x.size(); ++k) sum += w(gate, unit, static_cast<std::int64_t>(k)) * x[k];
  return sum;
}
double of(const GateVector& vector, char gate, std::int64_t unit) { return vector ? vector(gate, unit) : 0; }

}  // namespace

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double hyperbolic_tangent(double x) { return std::tanh(x); }
double clipped(double x, double limit) { return limit == 0 ? x : std::clamp(x, -limit, limit); }

void LstmCell::step(const Numbers& x, Numbers& state, Numbers& c) const {
  Numbers next_c;
  Numbers shown;
  for (std::int64_t j = 0; j < hidden; ++j) {
    const double old = c[static_cast<std::size_t>(j)];
    const auto sum = [&](char gate) { return dot(w, gate, j, x) + dot(r, gate, j, state) + of(bias, gate, j); };
    const double i = f(clipped(sum('i') + of(peephole, 'i', j) * old, gate_clip));
    const double forget = coupled ? 1 - i : f(clipped(sum('f') + of(peephole, 'f', j) * old, gate_clip));
    const double now = clipped(forget * old + i * g(clipped(sum('g'), gate_clip)), cell_clip);
    const double o = f(clipped(sum('o') + of(peephole, 'o', j) * now, gate_clip));
    next_c.push_back(now);
    shown.push_back(o * h(now));
  }
  c = next_c;
  if (!projection) {
    state = shown;
    return;
  }
  state.assign(static_cast<std::size_t>(projected), 0);
  for (std::int64_t to = 0; to < projected; ++to) {
    double& sum = state[static_cast<std::size_t>(to)];
    for (std::int64_t j = 0; j < hidden; ++j) sum += shown[static_cast<std::size_t>(j)] * projection(j, to);
    sum = clipped(p ? p(sum) : sum, projection_clip);
  }
}

void GruCell::step(const Numbers& x, Numbers& h) const {
  const auto gate = [&](char name, std::int64_t j) {
    return f(clipped(dot(w, name, j, x) + of(bias, name, j) + dot(r, name, j, h) + of(recurrent_bias, name, j), clip));
  };
  Numbers reset;
  for (std::int64_t j = 0; j < hidden; ++j) reset.push_back(gate('r', j) * h[static_cast<std::size_t>(j)]);
  Numbers next;
  for (std::int64_t j = 0; j < hidden; ++j) {
    const double old = h[static_cast<std::size_t>(j)];
    const double z = gate('z', j);
    const double recurrent =
        reset_after ? gate('r', j) * (dot(r, 'n', j, h) + of(recurrent_bias, 'n', j)) : dot(r, 'n', j, reset) + of(recurrent_bias, 'n', j);
    const double n = g(clipped(dot(w, 'n', j, x) + of(bias, 'n', j) + recurrent, clip));
    next.push_back(z_keeps ? z * old + (1 - z) * n : (1 - z) * old + z * n);
  }
  h = next;
}

void RnnCell::step(const Numbers& x, Numbers& h) const {
  Numbers next;
  for (std::int64_t j = 0; j < hidden; ++j) next.push_back(f(clipped(dot(w, 'h', j, x) + dot(r, 'h', j, h) + of(bias, 'h', j), clip)));
  h = next;
}

}  // namespace millrace::reference
