// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <millrace/kernels/cpu/conv_ending.h>

namespace millrace::cpu {

/// Rows of the output that are made together of `winograd_sums` sums, from as many rows of x.
inline constexpr int winograd_rows = 4;
inline constexpr int winograd_sums = 6;

/// Groups of rows of one channel, transformed: to[j·sum_stride + g·group_stride + i] from x[(first_row + 4·g + 0 … 5)·row_stride + i], i < count. Rows
/// outside [0, rows) are zero.
struct WinogradTake {
  const float* x = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t rows = 0;
  std::int64_t first_row = 0;
  std::int64_t groups = 0;
  std::int64_t count = 0;
  const float* zeros = nullptr;  ///< [count]
  float* to = nullptr;
  std::int64_t sum_stride = 0;
  std::int64_t group_stride = 0;
};
/// The bits of the largest |x| that were seen; those of NaN are the greatest.
std::uint32_t winograd_take(const WinogradTake& call);

/// Rows of the output of their sums, unit by unit: to[u·unit_stride + r·row_stride + i] from sums[j·sum_stride + u·panel + i] (+ bias[u]), i < count, then
/// relu where asked, then the ending.
struct WinogradGive {
  const float* sums = nullptr;
  std::int64_t sum_stride = 0;
  std::int64_t panel = 0;
  std::int64_t units = 0;
  std::int64_t rows = 0;  ///< of the output, at most 4
  std::int64_t count = 0;
  const float* bias = nullptr;  ///< [units] or null
  bool relu = false;
  ConvEnding<float> ending;
  float* to = nullptr;
  std::int64_t unit_stride = 0;
  std::int64_t row_stride = 0;
};
void winograd_give(const WinogradGive& call);

}  // namespace millrace::cpu
