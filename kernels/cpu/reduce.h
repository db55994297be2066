// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <vector>

#include <millrace/kernels/reduce.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Folds the last `axes` axes of `x`; `out` has the others as extents and any strides. Not empty unless the fold has a
/// value for it.
void reduce(Reduction kind, const Tensor& x, int axes, const Tensor& out, ThreadTeam& team);

/// Places (i64) of the greatest or least elements along the last axis.
void arg_extreme(const Tensor& x, bool greatest, bool select_last, const Tensor& out, ThreadTeam& team);

/// The place of the greatest or least of `n` > 0 elements side by side, as `arg_extreme` gives it.
std::int64_t extreme_place(const float* x, std::int64_t n, bool greatest, bool select_last);
std::int64_t extreme_place(const double* x, std::int64_t n, bool greatest, bool select_last);

/// log Σ exp of `n` elements side by side, as `reduce` gives it.
float log_sum_exp_row(const float* x, std::int64_t n);
double log_sum_exp_row(const double* x, std::int64_t n);

}  // namespace millrace::cpu
