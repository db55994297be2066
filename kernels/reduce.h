// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The kinds of reductions. A sum runs as a dot product does (gemm.h): from +0, ascending in row-major order over the
/// reduced axes, restarted every 512, block sums added ascending. The bits of an output depend on its own elements
/// alone.
///
///   sum; mean = Σx / n; l1 = Σ|x|; sum_square = Σx² (squares rounded, then summed); l2 = √Σx²
///   log_sum = log Σx; log_sum_exp = m + log Σexp(x − m), m the greatest
///   prod: from 1, ascending; min, max: NaN wins
///
/// Of no elements: 0 for sums and norms, NaN for mean, 1 for prod, −∞ for log_sum and log_sum_exp, and an ArgumentError
/// for min and max.
enum class Reduction : std::uint8_t { sum, mean, max, min, prod, l1, l2, sum_square, log_sum, log_sum_exp };

/// "log_sum_exp".
std::string_view name_of(Reduction kind);

/// Folds `axes` (negative count from the end; none means all). They stay as 1 with `keep_dims`, else go away. f16 and
/// bf16 fold in f32 and narrow at the end; integers (i64, i32) wrap, mean truncates toward zero, and log_sum,
/// log_sum_exp, l2 take floats alone; max and min take bool, i8 and u8 too. DTypeError, IndexError.
Tensor reduce(Reduction kind, const Tensor& x, const std::vector<int>& axes, bool keep_dims, StreamRef stream);
void reduce(Reduction kind, const Tensor& x, const std::vector<int>& axes, Tensor& out, StreamRef stream);
DDim reduced_dims(const DDim& dims, const std::vector<int>& axes, bool keep_dims);

/// The place (i64) of the greatest or least element along `axis`: the first one, or the last with `select_last`. NaN is
/// greatest and least. ArgumentError when the axis is empty but outputs are wanted.
Tensor argmax(const Tensor& x, int axis, bool keep_dims, bool select_last, StreamRef stream);
Tensor argmin(const Tensor& x, int axis, bool keep_dims, bool select_last, StreamRef stream);

}  // namespace millrace
