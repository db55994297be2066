// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/matrix_recurrence.h>
#include <millrace/tensor/kernel_context.h>

namespace millrace::cpu {

/// matrix_recurrence of kernels/matrix_recurrence.h; all tensors are row-major.
void matrix_recurrence(const MatrixRecurrence& call, const Tensor& out, const Tensor& last, const KernelContext& context);

}  // namespace millrace::cpu
