// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::cpu {

/// out[m, n] = a[m, k] · b[k, n], all contiguous, by the dot product of kernels/gemm.h. Nothing is packed: for matrices that are multiplied once.
void matmul_row(const float* a, const float* b, float* out, std::int64_t m, std::int64_t k, std::int64_t n);
void matmul_row(const double* a, const double* b, double* out, std::int64_t m, std::int64_t k, std::int64_t n);

}  // namespace millrace::cpu
