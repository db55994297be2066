// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

/// One step of the recurrent cells for one sequence, unit by unit in f64. Weights are asked for by the letter of their gate, so that each
/// source's own layout can stand behind them.
namespace millrace::reference {

using Numbers = std::vector<double>;
using OfElement = std::function<double(double)>;
/// Of a gate: from feature `from` to unit `unit`.
using GateMatrix = std::function<double(char gate, std::int64_t unit, std::int64_t from)>;
using GateVector = std::function<double(char gate, std::int64_t unit)>;

double sigmoid(double x);
double hyperbolic_tangent(double x);
/// Within [−limit, limit]; 0: as it is.
double clipped(double x, double limit);

/// Gates i f g o.
struct LstmCell {
  std::int64_t hidden = 0;
  GateMatrix w, r;
  GateVector bias;      ///< all biases of the gate; empty: none
  GateVector peephole;  ///< of i f o; empty: none
  std::function<double(std::int64_t from, std::int64_t to)> projection;
  std::int64_t projected = 0;
  OfElement f = sigmoid, g = hyperbolic_tangent, h = hyperbolic_tangent;
  OfElement p;  ///< of the projection; empty: none
  double gate_clip = 0, cell_clip = 0, projection_clip = 0;
  bool coupled = false;
  void step(const Numbers& x, Numbers& h, Numbers& c) const;
};

/// Gates r z n.
struct GruCell {
  std::int64_t hidden = 0;
  GateMatrix w, r;
  GateVector bias, recurrent_bias;
  OfElement f = sigmoid, g = hyperbolic_tangent;
  double clip = 0;
  bool reset_after = true;
  bool z_keeps = true;
  void step(const Numbers& x, Numbers& h) const;
};

/// The one "gate" is h.
struct RnnCell {
  std::int64_t hidden = 0;
  GateMatrix w, r;
  GateVector bias;
  OfElement f = hyperbolic_tangent;
  double clip = 0;
  void step(const Numbers& x, Numbers& h) const;
};

}  // namespace millrace::reference
