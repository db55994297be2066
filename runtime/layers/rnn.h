// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/layers/recurrent.h>
#include <millrace/tensor/tensor.h>

namespace millrace::layers {

/// Weights of one direction of one layer of H units.
struct RnnWeights {
  Tensor input;                ///< W [C, H]
  Tensor recurrent;            ///< R [H, H]
  std::optional<Tensor> bias;  ///< [H]; where a source has two, their sum
};

/// h' = f((h·R + bias) + x·W), the argument clipped to [−clip, clip].
struct RnnOptions {
  Direction direction = Direction::forward;
  Activation activation{"tanh"};
  double clip = 0;  ///< 0: none
  /// W and R in fewer bits: bf16, or i8 (layers/narrow.h); none: as they are.
  std::optional<DType> weights = std::nullopt;
  std::string name = "rnn";  ///< of the parameters: rnn_0_input, …
};

/// One step, for a loop of one's own: from x [B, C] and the state {h}, [B, H], to h as output and next state. Its parameters are appended
/// here, named options.name_input, …; call the cell in the loop. ShapeError as `rnn`.
Cell rnn_cell(const RnnWeights& weights, const RnnOptions& options = {});

struct RnnResult {
  Var y;               ///< rows [.., H], or both directions side by side
  std::vector<Var> h;  ///< [N, H] of each layer and direction, k = layer · directions + direction: behind the last step
};

/// Layers of Elman RNNs over sequences. `weights` and, unless empty, `h` (the initial states, [N, H] in the caller's order) have one for
/// each k. ShapeError when weights do not fit one another, ProgramError when their number does not fit.
RnnResult rnn(const Sequences& sequences, const std::vector<RnnWeights>& weights, const RnnOptions& options = {},
              const std::vector<Var>& h = {});

/// torch.nn.RNN: weight_ih [H, C], weight_hh [H, H], bias_ih and bias_hh [H].
RnnWeights rnn_from_pytorch(const Tensor& weight_ih, const Tensor& weight_hh, const std::optional<Tensor>& bias_ih = {},
                            const std::optional<Tensor>& bias_hh = {});
/// ONNX's RNN, direction `direction` of it: W [D, H, C], R [D, H, H], B [D, 2H] (W's, then R's).
RnnWeights rnn_from_onnx(const Tensor& w, const Tensor& r, const std::optional<Tensor>& b = {}, std::int64_t direction = 0);
/// Keras' SimpleRNN: kernel [C, H], recurrent_kernel [H, H], bias [H].
RnnWeights rnn_from_keras(const Tensor& kernel, const Tensor& recurrent_kernel, const std::optional<Tensor>& bias = {});

}  // namespace millrace::layers
