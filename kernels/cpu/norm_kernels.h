// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Layer norms of rows and their gradients, a few rows of n elements side by side, by instruction set. No bit depends on how many rows there are.
namespace millrace::cpu {

/// Of one sum of a layer norm (kernels/layer_norm.h) or of a softmax.
inline constexpr int norm_chains = 16;

/// In place (kernels/layer_norm.h); `bias` may be null, n ≥ 1.
void layer_norm_rows(float* const* rows, int count, std::int64_t n, const float* scale, const float* bias, float epsilon);
void layer_norm_rows(double* const* rows, int count, std::int64_t n, const double* scale, const double* bias, double epsilon);

/// One row of kernels/layer_norm_gradient.h. `dx` and `rows` overlap nothing.
template <class T>
struct NormGradientRow {
  const T *x, *g, *scale;
  T epsilon;
  T *dx, *rows;
};
void layer_norm_gradient_row(const NormGradientRow<float>& row, std::int64_t n);
void layer_norm_gradient_row(const NormGradientRow<double>& row, std::int64_t n);

}  // namespace millrace::cpu
