// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/layers/recurrent.h>
#include <millrace/tensor/tensor.h>

namespace millrace::layers {

/// Weights of one direction of one layer. H units; P = H, or the projection's width.
struct LstmWeights {
  Tensor input;                      ///< W [C, 4H], gates i f g o
  Tensor recurrent;                  ///< R [P, 4H], gates i f g o
  std::optional<Tensor> bias;        ///< [4H], gates i f g o; where a source has two, their sum
  std::optional<Tensor> peepholes;   ///< [3H], gates i f o
  std::optional<Tensor> projection;  ///< [H, P]
};

/// One step, as `lstm_cell` (kernels/lstm_cell.h) does it, with what a layer may ask for beside:
///
///   a = (h·R + bias) + x·W;   a_i += p_i·c;   a_f += p_f·c
///   i = f(a_i);   f = f(a_f);   g = g(a_g)
///   c' = f·c + i·g, clipped to [−cell_clip, cell_clip]
///   a_o += p_o·c'                                               o looks at the new c
///   o = f(a_o);   h' = (o·h(c'))·projection
///
/// Every a is clipped to [−gate_clip, gate_clip] before its function. What `lstm_cell` knows (all but projection and cell_clip) is that op.
struct LstmOptions {
  Direction direction = Direction::forward;
  Activation gate{"sigmoid"};        ///< f: of i, f, o
  Activation candidate{"tanh"};      ///< g
  Activation output{"tanh"};         ///< h
  double gate_clip = 0;              ///< ONNX's clip; 0: none
  double cell_clip = 0;              ///< of the new c; 0: none
  bool couple_input_forget = false;  ///< f = 1 − i
  /// Added to the bias of f, as TensorFlow's older cells do.
  double forget_bias = 0;
  std::string name = "lstm";  ///< of the parameters: lstm_0_input, …
};

/// One step, for a loop of one's own: a decoder that `generate_beam` calls, a DynamicRNN with several inputs. From x [B, C] and the states
/// {h, c}, [B, P] and [B, H], to h as output and the next {h, c}. Its parameters are appended here, named options.name_input, …; call the
/// cell in the loop. ShapeError as `lstm`.
Cell lstm_cell(const LstmWeights& weights, const LstmOptions& options = {});

struct LstmResult {
  Var y;               ///< rows [.., P], or both directions side by side
  std::vector<Var> h;  ///< [N, P] of each layer and direction, k = layer · directions + direction: behind the last step
  std::vector<Var> c;  ///< [N, H]
};

/// Layers of LSTMs over sequences. `weights` and, unless empty, `h` and `c` (the initial states, [N, P] and [N, H] in the caller's order)
/// have one for each k. ShapeError when weights do not fit one another, ProgramError when their number does not fit.
LstmResult lstm(const Sequences& sequences, const std::vector<LstmWeights>& weights, const LstmOptions& options = {},
                const std::vector<Var>& h = {}, const std::vector<Var>& c = {});

/// torch.nn.LSTM: weight_ih [4H, C], weight_hh [4H, P], bias_ih and bias_hh [4H] (gates i f g o), weight_hr [P, H].
LstmWeights lstm_from_pytorch(const Tensor& weight_ih, const Tensor& weight_hh, const std::optional<Tensor>& bias_ih = {},
                              const std::optional<Tensor>& bias_hh = {}, const std::optional<Tensor>& weight_hr = {});
/// ONNX's LSTM, direction `direction` of it: W [D, 4H, C], R [D, 4H, H], B [D, 8H] (W's, then R's; gates i o f c), P [D, 3H] (i o f).
LstmWeights lstm_from_onnx(const Tensor& w, const Tensor& r, const std::optional<Tensor>& b = {}, const std::optional<Tensor>& p = {},
                           std::int64_t direction = 0);
/// Keras: kernel [C, 4H], recurrent_kernel [H, 4H], bias [4H], gates i f c o.
LstmWeights lstm_from_keras(const Tensor& kernel, const Tensor& recurrent_kernel, const std::optional<Tensor>& bias = {});

}  // namespace millrace::layers
