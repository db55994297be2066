// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <millrace/kernels/arithmetic.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Elements that a condition replaces: `value` where it is true, or, with `keeps`, where it is false. It broadcasts to the scores.
struct ScoreMask {
  Tensor condition;
  double value = 0;
  bool keeps = false;
};

/// Attention of q [B, H, S, D], k [B, H, T, D] and v [B, H, T, E], views of any strides and of one dtype, f32 or f64.
struct Attention {
  Tensor q, k, v;
  /// The elements of q are multiplied by it, if it is not 1.
  double scale = 1;
  /// Heads of k and v are shared by as many heads of q each, side by side.
  bool shares_heads = false;
  /// Steps on the scores, with their operands, which broadcast to them.
  std::vector<ArithmeticStep> steps;
  std::vector<Tensor> operands;
  /// One i64, which acts behind the steps: query s sees keys up to s + offset, and −∞ is added to the scores of other keys.
  std::optional<Tensor> offset;
  /// The extents of the bias that `offset` adds, which stretches to the scores; −1: those of the scores.
  std::int64_t bias_queries = -1, bias_keys = -1;
  /// The mask of the scores, which acts behind the steps and `offset`.
  std::optional<ScoreMask> mask;
  /// The mask of the weights; its value is 0.
  std::optional<ScoreMask> hidden;
  /// Axis i of the result is axis out_axes[i] of [B, H, S, E]; E stays the last.
  std::vector<int> out_axes = {0, 1, 2, 3};
};

/// softmax(q·scale · kᵀ, then steps and masks) · v, in the bits of `matmul`, `arithmetic`, `where` and `softmax` one after another: the scores of some queries stay in
/// the cache until their products are there, and keys that no query sees are left out. In host memory alone. Extents broadcast as those of the parts do. ShapeError and
/// DTypeError are those of the parts.
Tensor attention(const Attention& call, StreamRef stream);

}  // namespace millrace
