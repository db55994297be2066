// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/layers/recurrent.h>
#include <millrace/tensor/tensor.h>

namespace millrace::layers {

/// Weights of one direction of one layer of H units.
struct GruWeights {
  Tensor input;                          ///< W [C, 3H], gates r z n
  Tensor recurrent;                      ///< R [H, 3H], gates r z n
  std::optional<Tensor> bias;            ///< [3H], gates r z n: W's
  std::optional<Tensor> recurrent_bias;  ///< [3H], gates r z n: R's. That of n is inside the reset, where the reset comes after the product
};

/// Where the reset gate takes hold.
enum class GruReset {
  after,  ///< n = g((x·W_n + b_n) + r·(h·R_n + b'_n)): PyTorch, Keras' default, ONNX with linear_before_reset = 1
  before  ///< n = g((x·W_n + b_n) + ((r·h)·R_n + b'_n)): ONNX' default, Fluid
};
/// The share of the old state that stays.
enum class GruKeeps {
  z,           ///< h' = z·h + (1 − z)·n: PyTorch, ONNX, Keras, Fluid with origin_mode
  complement,  ///< h' = (1 − z)·h + z·n: Fluid
};

///   r = f((h·R_r + b'_r) + (x·W_r + b_r));   z = f((h·R_z + b'_z) + (x·W_z + b_z))
/// Each argument of f and g is clipped to [−clip, clip].
struct GruOptions {
  Direction direction = Direction::forward;
  GruReset reset = GruReset::after;
  GruKeeps keeps = GruKeeps::z;
  Activation gate{"sigmoid"};    ///< f: of r, z
  Activation candidate{"tanh"};  ///< g
  double clip = 0;               ///< 0: none
  /// W and R in fewer bits: bf16, or i8 (layers/narrow.h); none: as they are.
  std::optional<DType> weights = std::nullopt;
  std::string name = "gru";  ///< of the parameters: gru_0_input, …
};

/// One step, for a loop of one's own: a decoder that `generate_beam` calls, a DynamicRNN with several inputs. From x [B, C] and the state
/// {h}, [B, H], to h as output and next state. Its parameters are appended here, named options.name_input, …; call the cell in the loop.
/// ShapeError as `gru`.
Cell gru_cell(const GruWeights& weights, const GruOptions& options = {});

struct GruResult {
  Var y;               ///< rows [.., H], or both directions side by side
  std::vector<Var> h;  ///< [N, H] of each layer and direction, k = layer · directions + direction: behind the last step
};

/// Layers of GRUs over sequences. `weights` and, unless empty, `h` (the initial states, [N, H] in the caller's order) have one for each k.
/// ShapeError when weights do not fit one another, ProgramError when their number does not fit.
GruResult gru(const Sequences& sequences, const std::vector<GruWeights>& weights, const GruOptions& options = {},
              const std::vector<Var>& h = {});

/// torch.nn.GRU: weight_ih [3H, C], weight_hh [3H, H], bias_ih and bias_hh [3H], gates r z n. Reset after, z keeps.
GruWeights gru_from_pytorch(const Tensor& weight_ih, const Tensor& weight_hh, const std::optional<Tensor>& bias_ih = {},
                            const std::optional<Tensor>& bias_hh = {});
/// ONNX's GRU, direction `direction` of it: W [D, 3H, C], R [D, 3H, H], B [D, 6H] (W's, then R's), gates z r h. Reset before unless
/// linear_before_reset, z keeps.
GruWeights gru_from_onnx(const Tensor& w, const Tensor& r, const std::optional<Tensor>& b = {}, std::int64_t direction = 0);
/// Keras: kernel [C, 3H], recurrent_kernel [H, 3H], bias [2, 3H] (reset_after) or [3H], gates z r h. Reset after with reset_after, z keeps.
GruWeights gru_from_keras(const Tensor& kernel, const Tensor& recurrent_kernel, const std::optional<Tensor>& bias = {});
/// TensorFlow's GRUCell: gates kernel [C + H, 2H] and bias [2H] of r u, candidate kernel [C + H, H] and bias [H]; the rows of the input
/// first. Reset before, z keeps.
GruWeights gru_from_tensorflow(const Tensor& gates_kernel, const Tensor& gates_bias, const Tensor& candidate_kernel,
                               const Tensor& candidate_bias);
/// PaddlePaddle Fluid's dynamic_gru: `weight` [H, 3H] holds a matrix [H, 2H] of u r, and behind it one [H, H] of c; `bias` [1, 3H] or [3H]
/// of u r c. Its input comes multiplied already: `projection` [C, 3H] of u r c is the fc before it (its own bias, if it has one, may be
/// added to `bias`). Reset before; complement keeps, unless origin_mode.
GruWeights gru_from_fluid(const Tensor& projection, const Tensor& weight, const std::optional<Tensor>& bias = {});

}  // namespace millrace::layers
