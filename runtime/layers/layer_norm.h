// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <millrace/runtime/builder/var.h>
#include <millrace/tensor/tensor.h>

namespace millrace::layers {

struct LayerNormWeights {
  Tensor scale;                ///< [C]; PyTorch's weight, Keras' gamma
  std::optional<Tensor> bias;  ///< [C]; Keras' beta
};

/// (x − mean) / sqrt(variance + epsilon) · scale + bias over the last axis: [.., C]. `epsilon` is PyTorch's and ONNX's; Keras has 1e-3. Row
/// by row: a LoD stays, and the result streams.
build::Var layer_norm(const build::Var& x, const LayerNormWeights& weights, double epsilon = 1e-5, const std::string& name = "layer_norm");

}  // namespace millrace::layers
