// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::cpu {

/// Vectors in a panel of int8 columns, and of places of a convolution. (Panels of columns of floats have as many as `GemmKernels::panel` says.)
inline constexpr int panel_vectors = 4;
/// The dot product restarts after so many k (gemm.h).
inline constexpr std::int64_t k_block = 512;
/// The most rows of one call.
inline constexpr std::int64_t max_rows = 64;

/// Rows times panels: out[row][column·column_stride] = alpha·total (+ bias[column]) (+ beta·what is there).
///
/// Columns stand side by side in the lanes of a vector. Panel p begins at b + p·panel_stride and holds `columns` p·panel·lanes and following; from one k
/// to the next it is b_stride elements, or, with b_stride = 0, as many as the panel has whole vectors (packed: the last panel may be narrower, and is
/// padded with zeros).
template <class T>
struct MatrixCall {
  const T* const* a = nullptr;  ///< rows of k elements
  T* const* out = nullptr;      ///< first element of each row
  std::int64_t rows = 0;        ///< ≤ max_rows
  std::int64_t k = 0;
  const T* b = nullptr;
  std::int64_t b_stride = 0;
  std::int64_t panel_stride = 0;
  /// Instead of b, packed: bf16 in pairs of k, [pair][column][2], which is widened; f32 alone. panel_stride counts them.
  const std::uint16_t* pairs = nullptr;
  std::int64_t columns = 0;  ///< in all
  std::int64_t first_panel = 0;
  std::int64_t last_panel = 0;
  bool backwards = false;   ///< the last panel first
  const T* bias = nullptr;  ///< [columns] or null
  T alpha = 1;
  T beta = 0;
  std::int64_t column_stride = 1;
};

/// The kernels of one instruction set.
struct GemmKernels {
  std::int64_t lanes_f32;
  std::int64_t lanes_f64;
  std::int64_t panel;  ///< vectors of columns
  void (*run_f32)(const MatrixCall<float>&);
  void (*run_f64)(const MatrixCall<double>&);

  template <class T>
  std::int64_t lanes() const {
    return sizeof(T) == 4 ? lanes_f32 : lanes_f64;
  }
  void run(const MatrixCall<float>& call) const { run_f32(call); }
  void run(const MatrixCall<double>& call) const { run_f64(call); }
};

/// The kernels of the best instruction set of this machine.
const GemmKernels& gemm_kernels();

}  // namespace millrace::cpu
