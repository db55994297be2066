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

/// Windows of a plane along both of its axes, one axis after the other as kernels/pool.h: rows [first, first + count) of the result, side by side from `out` on.
/// `along` has the stride 1, or 2 and no dilation.
template <class T>
struct StripCall {
  struct Axis {
    std::int64_t kernel = 1, stride = 1, dilation = 1, before = 0;
  };
  const T* plane = nullptr;
  std::int64_t rows = 0, columns = 0;  ///< of the plane, which is row-major
  Axis down, along;
  T padding = 0;
  /// Room for `count` rows that are folded along `down`, `width` elements apart and at least as long as a row with its padding, and for strip_slack elements
  /// behind them. All of it is padding before the first call, and so are afterwards the elements around the rows.
  T* room = nullptr;
  std::int64_t width = 0;
  std::int64_t first = 0, count = 0;
  T* out = nullptr;
  std::int64_t out_columns = 0;
};
/// Elements behind the last row: vectors end there.
inline constexpr std::int64_t strip_slack = 64;
void fold_strip(const StripCall<float>& call, Binary fold);
void fold_strip(const StripCall<double>& call, Binary fold);

}  // namespace millrace::cpu
