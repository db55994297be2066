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
///   o = f(a_o);   h' = p((o·h(c'))·projection), clipped to [−projection_clip, projection_clip]
///
/// Every a is clipped to [−gate_clip, gate_clip] before its function. Options that `lstm_cell` has (all but projection and cell_clip) make that op, or,
/// with weights of i8, `lstm_gates` behind both products.
struct LstmOptions {
  Direction direction = Direction::forward;
  Activation gate{"sigmoid"};        ///< f: of i, f, o
  Activation candidate{"tanh"};      ///< g
  Activation output{"tanh"};         ///< h
  double gate_clip = 0;              ///< ONNX's clip; 0: none
  double cell_clip = 0;              ///< of the new c; 0: none
  Activation projected{"identity"};  ///< p, where there is a projection: Fluid's proj_activation
  double projection_clip = 0;        ///< of what p gives; 0: none. TensorFlow's and Fluid's proj_clip
  bool couple_input_forget = false;  ///< f = 1 − i
  /// Added to the bias of f, as TensorFlow's older cells do. A constant, and no weight, where there is no bias.
  double forget_bias = 0;
  /// W, R and the projection in fewer bits: bf16, or i8 (layers/narrow.h); none: as they are.
  std::optional<DType> weights = std::nullopt;
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
/// TensorFlow's cells (BasicLSTMCell, LSTMCell): kernel [C + P, 4H], the rows of the input first, bias [4H] (gates i j f o), where there
/// are peepholes their diagonals w_i, w_f, w_o [H], projection kernel [H, P]. The cells' forget_bias (1 unless set) is `forget_bias`.
LstmWeights lstm_from_tensorflow(const Tensor& kernel, const std::optional<Tensor>& bias = {}, const std::vector<Tensor>& peepholes = {},
                                 const std::optional<Tensor>& projection = {});
/// PaddlePaddle Fluid's dynamic_lstm and dynamic_lstmp: `weight` [P, 4H] and `bias` [1, 4H] or [4H] of c i f o, with peepholes 7H: behind
/// them those of i f o; `projected` [H, P] where there is one. Its input comes multiplied already: `projection` [C, 4H] of c i f o is the
/// fc before it. Fluid's proj_activation is tanh unless set: the option `projected`.
LstmWeights lstm_from_fluid(const Tensor& projection, const Tensor& weight, const std::optional<Tensor>& bias = {},
                            const std::optional<Tensor>& projected = {});
/// Keras: kernel [C, 4H], recurrent_kernel [H, 4H], bias [4H], gates i f c o.
LstmWeights lstm_from_keras(const Tensor& kernel, const Tensor& recurrent_kernel, const std::optional<Tensor>& bias = {});

}  // namespace millrace::layers
