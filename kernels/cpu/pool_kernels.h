// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/binary.h>

namespace millrace::cpu {

/// Windows along one row: out[i] = fold over t < kernel of from[i·stride + t·dilation], as kernels/pool.h.
template <class T>
struct WindowCall {
  const T* from = nullptr;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  std::int64_t count = 0;  ///< of windows
};

/// `fold`: maximum, minimum or add. For the instruction set of this machine. `out` does not overlap `from`.
void fold_windows(const WindowCall<float>& call, Binary fold, float* out);
void fold_windows(const WindowCall<double>& call, Binary fold, double* out);

/// Rows, one over the other: to[i] = fold over r < `count` of rows[r][i], as kernels/pool.h. A row that is null is `padding` throughout; one row is not.
template <class T>
struct RowsCall {
  const T* const* rows = nullptr;
  std::int64_t count = 0;
  std::int64_t length = 0;
  T padding = 0;
};
/// `to` may be none of the rows.
void fold_rows(const RowsCall<float>& call, Binary fold, float* to);
void fold_rows(const RowsCall<double>& call, Binary fold, double* to);

}  // namespace millrace::cpu
