// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// softmax and its logarithm of one row of n elements, as kernels/softmax.h, by instruction set. `to` may be `from`.
namespace millrace::cpu {

void softmax_row(const float* from, float* to, std::int64_t n);
void softmax_row(const double* from, double* to, std::int64_t n);
void log_softmax_row(const float* from, float* to, std::int64_t n);
void log_softmax_row(const double* from, double* to, std::int64_t n);

}  // namespace millrace::cpu
