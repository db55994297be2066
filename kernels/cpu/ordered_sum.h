// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include <millrace/kernels/cpu/gemm_kernels.h>

namespace millrace::cpu {

/// Rows that are summed side by side: one chain of additions alone would leave the adder idle.
inline constexpr int sum_rows = 8;

/// sums[r] = Σ rows[r][i] for `count` ≤ sum_rows rows of n elements, each in the order of kernels/reduce.h.
template <class T>
void ordered_sums(const T* const* rows, int count, std::int64_t n, T* sums) {
  const T* row[sum_rows];
  for (int r = 0; r < sum_rows; ++r) row[r] = rows[std::min(r, count - 1)];
  T total[sum_rows] = {};
  for (std::int64_t begin = 0; begin < n; begin += k_block) {
    const std::int64_t end = std::min(n, begin + k_block);
    T sum[sum_rows] = {};
    for (std::int64_t i = begin; i < end; ++i)
      for (int r = 0; r < sum_rows; ++r) sum[r] += row[r][i];
    for (int r = 0; r < sum_rows; ++r) total[r] = begin == 0 ? sum[r] : total[r] + sum[r];
  }
  std::copy_n(total, count, sums);
}

}  // namespace millrace::cpu
