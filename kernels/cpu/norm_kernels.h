// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Layer norms of rows and their gradients, a few rows of n elements side by side, by instruction set. No bit depends on how many rows there are.
namespace millrace::cpu {

/// The chains of one sum of a layer norm (kernels/layer_norm.h) or of a softmax.
inline constexpr int norm_chains = 16;

/// Rows that keep the adders of a processor busy: each addition of a chain waits for the one before.
inline constexpr int norm_rows = 4;

/// to[row] = the norm of from[row] (kernels/layer_norm.h). to[row] may be from[row], and overlaps no other row; `bias` may be null, n ≥ 1.
void layer_norm_rows(const float* const* from, float* const* to, int count, std::int64_t n, const float* scale, const float* bias,
                     float epsilon);
void layer_norm_rows(const double* const* from, double* const* to, int count, std::int64_t n, const double* scale, const double* bias,
                     double epsilon);

/// One row of kernels/layer_norm_gradient.h. `dx` and `rows` overlap nothing of any row.
template <class T>
struct NormGradientRow {
  const T *x, *g, *scale;
  T *dx, *rows;
};
void layer_norm_gradient_rows(const NormGradientRow<float>* rows, int count, std::int64_t n, float epsilon);
void layer_norm_gradient_rows(const NormGradientRow<double>* rows, int count, std::int64_t n, double epsilon);

}  // namespace millrace::cpu
