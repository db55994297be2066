// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/conv.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// x with its padding, as `conv` reads it: [N, C, before + L + after, …] with these strides, from element 0 of `elements` on. Two rows share the zeros
/// between them, and so do two planes, so that a padded place may be the place of two rows.
struct PaddedPlanes {
  DDim strides;
  std::int64_t elements = 0;
  std::int64_t first = 0;  ///< of x itself

  /// `dims`: those of x.
  PaddedPlanes(const ConvDesc& desc, const DDim& dims);
};

/// conv of kernels/conv.h: weights and bias row-major; out row-major [N, out_channels, …]; `room`: PaddedPlanes::elements elements where an axis has
/// padding, else null, and x is row-major.
void conv(const ConvDesc& desc, const Tensor& x, const Tensor* room, const Tensor& weights, const Tensor* bias, const Tensor& out,
          ThreadTeam& team);

}  // namespace millrace::cpu
