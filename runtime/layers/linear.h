// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <millrace/runtime/builder/var.h>
#include <millrace/tensor/tensor.h>

namespace millrace::layers {

struct LinearWeights {
  Tensor weight;               ///< [C, M]
  std::optional<Tensor> bias;  ///< [M]
};

/// x·weight + bias of the last axis: [.., C] gives [.., M]. Row by row: a LoD stays, and the result streams. ShapeError when the bias does
/// not fit.
build::Var linear(const build::Var& x, const LinearWeights& weights, const std::string& name = "linear");

/// torch.nn.Linear, and ONNX's Gemm with transB: weight [M, C].
LinearWeights linear_from_pytorch(const Tensor& weight, const std::optional<Tensor>& bias = {});

}  // namespace millrace::layers
