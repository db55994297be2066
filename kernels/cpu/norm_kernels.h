// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Sums and layer norms of rows, and their gradients, a few rows of n elements side by side, by instruction set. No bit depends on how many rows there are.
namespace millrace::cpu {

/// Rows that go side by side: one chain of additions alone would leave the adder idle.
inline constexpr int sum_rows = 8;
/// Of one sum of a layer norm (kernels/layer_norm.h).
inline constexpr int norm_chains = 16;

/// sums[r] = Σ rows[r][i] for `count` ≤ sum_rows rows, each in the order of kernels/reduce.h.
void ordered_sums(const float* const* rows, int count, std::int64_t n, float* sums);
void ordered_sums(const double* const* rows, int count, std::int64_t n, double* sums);

/// to[c] = Σ from[i·stride + c] over `n` rows for each of `columns` columns, in the order of kernels/reduce.h.
void column_sums(const float* from, std::int64_t n, std::int64_t stride, std::int64_t columns, float* to);
void column_sums(const double* from, std::int64_t n, std::int64_t stride, std::int64_t columns, double* to);

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
