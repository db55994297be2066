// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::cpu {

/// The operands of `LstmGates`, and those of `LstmGateGradients`, as places in a table. Absent operands have null there.
namespace lstm_gates {
/// An operand that each gate has takes four places: the one of gate k of i, f, g, o is at its first place + k, such as sum + k.
enum Operand : std::uint8_t {
  sum = 0,          ///< pre-activations, or what `first` and `second` are added to
  first = 4,        ///< sum + first; of all gates that are there, or of none
  second = 8,       ///< (sum + first) + second; with `first` alone
  c = 12,           ///< the cell state
  activation = 13,  ///< sigmoid of i, f and o, tanh of g
  c_out = 17,       ///< f·c + i·g
  cell_activation,  ///< tanh(c_out); with gate o alone
  h_out,            ///< o·tanh(c_out); with gate o alone
  count,
  outputs = activation  ///< operands from here on are written
};
}  // namespace lstm_gates
namespace lstm_gate_gradients {
enum Operand : std::uint8_t {
  dh = 0,  ///< with o, a, d_o
  o,       ///< sigmoid
  a,       ///< tanh of the cell state
  dc,      ///< added to the gradient that comes through a; with dh and i alone
  d,       ///< the gradient of the cell state, where dh does not give it
  i,       ///< sigmoid; with g, f, c, d_i, d_g, d_f, dc_out
  g,       ///< tanh
  f,       ///< sigmoid
  c,       ///< the cell state before
  d_o,     ///< sigmoid_gradient(dh·a, o)
  d_a,     ///< tanh_gradient(dh·o, a), where i is absent
  d_i,     ///< sigmoid_gradient(d·g, i), with d = dc + tanh_gradient(dh·o, a) or as given
  d_g,     ///< tanh_gradient(d·i, g)
  d_f,     ///< sigmoid_gradient(d·c, f)
  dc_out,  ///< d·f
  count,
  outputs = d_o
};
}  // namespace lstm_gate_gradients

/// `hidden` elements of each operand for each of `rows` rows, `stride` elements apart. An output overlaps no operand but one of the same elements.
template <class T, std::size_t Operands>
struct GateRows {
  T* at[Operands] = {};
  std::int64_t stride[Operands] = {};
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
};
template <class T>
using LstmGates = GateRows<T, lstm_gates::count>;
template <class T>
using LstmGateGradients = GateRows<T, lstm_gate_gradients::count>;

/// The functions of this machine's instruction set, each op rounded as if it stood alone; T is float or double.
template <class T>
struct LstmGateFunctions {
  void (*gates)(const LstmGates<T>&) = nullptr;
  void (*gradients)(const LstmGateGradients<T>&) = nullptr;
};
template <class T>
LstmGateFunctions<T> lstm_gate_functions();
template <>
LstmGateFunctions<float> lstm_gate_functions<float>();
template <>
LstmGateFunctions<double> lstm_gate_functions<double>();

}  // namespace millrace::cpu
