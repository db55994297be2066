// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The axes of `causal_filter`, each of 0, 1 and 2 once, and how far back its taps reach.
struct FilterDesc {
  int sequences = 0;
  int places = 1;
  int channels = 2;
  std::vector<std::int64_t> delays;  ///< of each tap, at least 0
};

/// The filtered places, with the axes of x, and the places behind which the next ones stand: the last of past and x together, as many as past has.
struct Filtered {
  Tensor out;
  Tensor last;
};

/// A filter of finite impulse response for each channel, over the places of each sequence:
///   y[n, t, c] = Σ_j w[j, c] · x[n, t − delays[j], c] (+ b[c]),  places before the first are those of `past`, of which the last stands in front of place 0.
/// Products are rounded and then added, in the order of j: the bits of `mul` and `add`, one op after another.
///
/// x and past: tensors of rank 3 with the axes of `desc`, any strides, one number of sequences and channels; past has as many places as the largest delay, or more. weights
/// [taps, C], at least one tap; bias [C] or null. f32 or f64, all of one dtype, in host memory alone. ShapeError, DTypeError, ArgumentError name both sides.
Filtered causal_filter(const FilterDesc& desc, const Tensor& x, const Tensor& past, const Tensor& weights, const Tensor* bias,
                       StreamRef stream);

}  // namespace millrace
