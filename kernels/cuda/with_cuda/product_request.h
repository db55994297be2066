// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/with_cuda/queue.h>
#include <millrace/tensor/with_cuda/walk.h>

namespace millrace::cuda {

/// A product as its caller describes it, a matrix for each element of a batch: strides in elements.
struct ProductRequest {
  DDim batch;
  DDim batch_strides[3];  // a, b, out
  DType dtype = DType::f32;
  const void *a = nullptr, *b = nullptr;
  std::int64_t a_row = 0, a_column = 0, b_row = 0, b_column = 0;
  Tensor out;
  std::int64_t out_offset = 0, out_row = 0, out_column = 0;
  std::int64_t m = 0, n = 0, k = 0;
  double alpha = 1, beta = 0;
  std::int64_t chain = 0;  ///< of f16 and bf16: k from one restart of a sum to the next; 0: there is none
  const Tensor* bias = nullptr;
  std::int64_t bias_offset = 0;

  Walk<3> walk() const {
    const DDim* const strides[3] = {&batch_strides[0], &batch_strides[1], &batch_strides[2]};
    return Walk<3>(batch, strides);
  }
};

/// Multiplies by our own kernels.
void multiply_ours(const ProductRequest& request, const Queue& queue);
/// Multiplies by cuBLASLt where a probe showed that it has the bits of our own kernels; elsewhere enqueues nothing and gives false.
bool multiply_by_library(const ProductRequest& request, const Queue& queue);
/// Multiplies f16, bf16 and, where the device takes tf32, f32, by the arithmetic of mma.cuh.
void multiply_by_mma(const ProductRequest& request, const Queue& queue);

}  // namespace millrace::cuda
