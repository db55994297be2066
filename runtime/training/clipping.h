// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/training/weights.h>

namespace millrace::training {

/// Bounds of gradients. 0: no bound.
struct Clipping {
  double value = 0;  ///< each element into [−value, value], first
  double norm = 0;   ///< then all together to this Euclidean norm at most, as torch.nn.utils.clip_grad_norm_: times norm / (found + 1e-6)
};

/// √Σ g² over all elements of all tensors: squares and their sum in f64, by name, then in row-major order. DTypeError for a tensor that
/// is not floating.
double global_norm(const Tensors& gradients);

/// ArgumentError for a bound below 0, or one that is no number.
void check(const Clipping& clipping);

/// Clips `gradients`, and gives the norm that they had before (after `value`, where there is one). Tensors that change are replaced by new
/// ones, so that others who hold the old ones do not see it. Errors of `check`.
double clip(Tensors& gradients, const Clipping& clipping);

}  // namespace millrace::training
