// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

namespace cpu {
struct GemmKernels;
}

/// **The dot product of millrace.** Every matrix product, convolution and recurrent cell sums in this order, so an
/// output has the same bits whatever the number of rows, threads, blocks, or the packing:
///
///   sum of a block of 512 k: from +0, one fused multiply-add per k, ascending
///                            (targets without FMA: a rounded product, then a sum)
///   total:                   the first block's sum, then each later block's added, ascending; +0 when there is no k
///   what is added to it:     bias, a projection, beta·c come after, each a separate, rounded addition
///
/// f32 and f64 are computed in themselves. f16 and bf16 are computed in f32, where their products are exact, and
/// narrowed once at the end; on CUDA devices by tensor cores, whose order is that of kernels/cuda/with_cuda/mma.cuh,
/// and so is that of f32 on a device that was made with tf32 (CudaOptions::tf32). Weights of bf16 under rows of f32 are widened, which is exact: the same chain. i32 and i64 wrap; i8 and u8 give
/// i32.

/// c = alpha·a·b + beta·c for a[M, K], b[K, N], c[M, N]; transposed operands are views (`permute({1, 0})`). The terms
/// are alpha·total and beta·c, each rounded (not multiplied when the factor is 1), then their sum; with beta = 0
/// nothing of `c` is read. One dtype for all; c may be f32 when a and b are f16 or bf16, and b bf16 when the others are f32. Integers need
/// integral factors. `c` must not overlap a or b. ShapeError, DTypeError name all three.
void gemm(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& c, StreamRef stream);

/// The description of a packed product: out[M, n] = x[M, k] · W[k, n] (+ bias[n]) for any M.
struct GemmDesc {
  std::int64_t k = 0;
  std::int64_t n = 0;
  DType dtype = DType::f32;                     ///< of x and W: f64, f32, f16, bf16
  DType out = DType::f32;                       ///< the same, or f32 for f16 and bf16
  std::optional<DType> weights = std::nullopt;  ///< of W where it is another: bf16 under x of f32

  DType weights_dtype() const { return weights.value_or(dtype); }
};

/// How the product runs on one place. Immutable, cheap to copy, shareable between threads. PlaceError for a place
/// without kernels.
class GemmPlan {
 public:
  const GemmDesc& desc() const noexcept { return desc_; }
  const Place& place() const noexcept { return place_; }
  const cpu::GemmKernels& kernels() const noexcept { return *kernels_; }

 private:
  friend GemmPlan make_gemm_plan(const GemmDesc& desc, const Place& place);
  GemmDesc desc_;
  Place place_;
  const cpu::GemmKernels* kernels_ = nullptr;
};
GemmPlan make_gemm_plan(const GemmDesc& desc, const Place& place = CpuPlace{});

/// Weights in the order in which the kernels of a plan read them: [block of units][k][lanes]; those of bf16 stay so, [block of units][pair of
/// k][lanes][2]. Cheap to copy, shareable.
struct PackedMatrix {
  Tensor data;
};
/// Packs W[k, n] of any strides; a transposed weight is `W.permute({1, 0})`. ShapeError, DTypeError.
PackedMatrix pack(const GemmPlan& plan, const Tensor& weights, StreamRef stream);

/// out = x · W (+ bias). x is [k] or [..., k] with contiguous rows (any strides are taken, at the price of a copy), out
/// [n] or [..., n], contiguous. No allocation for contiguous f32 and f64.
void run(const GemmPlan& plan, const PackedMatrix& weights, const Tensor& x, Tensor& out, StreamRef stream);
void run(const GemmPlan& plan, const PackedMatrix& weights, const Tensor& x, const Tensor& bias, Tensor& out, StreamRef stream);

}  // namespace millrace
