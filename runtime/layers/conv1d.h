// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <millrace/runtime/layers/recurrent.h>
#include <millrace/tensor/tensor.h>

namespace millrace::layers {

struct Conv1dWeights {
  Tensor weight;               ///< [K, C, M]: tap, feature, unit. Tap k of K looks (k − left) · dilation steps ahead of its row
  std::optional<Tensor> bias;  ///< [M]
};

struct Conv1dOptions {
  /// Causal: `left` = K − 1, a row needs those before it alone, and the layer streams. Else "same": left = (K − 1) / 2, as PyTorch's
  /// padding="same".
  bool causal = true;
  std::int64_t dilation = 1;
  /// The result has the rows 0, stride, 2·stride, … of each sequence: ⌈n / stride⌉ of n. With 2 or more the result does not stream.
  std::int64_t stride = 1;
  std::string name = "conv1d";
};

/// y[t] = bias + Σ_k x[t + (k − left)·dilation]·W[k] in each sequence, with zeros before its first and behind its last row: as many rows as
/// x, or with a stride every so many of them. The rows behind a window are a memory of a DynamicRNN (StaticRNN for dense [T, N, C]), the
/// rows ahead one that goes the other way. With lengths (dense) the result is zero behind a sequence's end, which with a stride is
/// ⌈length / stride⌉. ShapeError when weights do not fit one another.
Var conv1d(const Sequences& sequences, const Conv1dWeights& weights, const Conv1dOptions& options = {});

/// torch.nn.Conv1d and ONNX's Conv: weight [M, C, K].
Conv1dWeights conv1d_from_pytorch(const Tensor& weight, const std::optional<Tensor>& bias = {});

}  // namespace millrace::layers
