// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/packing.h>
#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Bytes that `gemm` needs besides its operands and its stack, for 2-D views: often 0.
std::int64_t gemm_scratch_bytes(const Tensor& a, const Tensor& b);

/// c = alpha·a·b + beta·c for 2-D views of any strides: f32, f64, i32, i64, or i8 and u8 with an i32 c. Extents are
/// checked.
void gemm(double alpha, const Tensor& a, const Tensor& b, double beta, const Tensor& c, const Tensor& scratch, ThreadTeam& team);

/// out[row·out_row] = a[row·a_row] · packed (+ bias), rows of contiguous elements.
template <class T>
struct PackedProduct {
  const T* a = nullptr;
  std::int64_t a_row = 0;
  T* out = nullptr;
  std::int64_t out_row = 0;
  std::int64_t rows = 0;
  const T* packed = nullptr;
  const std::uint16_t* pairs = nullptr;  ///< instead: bf16 in pairs of k (gemm_kernels.h)
  const T* bias = nullptr;
};
void packed_gemm(const GemmKernels& kernels, const PackedLayout& layout, const PackedProduct<float>& product, ThreadTeam& team);
void packed_gemm(const GemmKernels& kernels, const PackedLayout& layout, const PackedProduct<double>& product, ThreadTeam& team);

}  // namespace millrace::cpu
