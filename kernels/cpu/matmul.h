// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Bytes that `matmul` needs besides its operands (at least 2-D).
std::int64_t matmul_scratch_bytes(const Tensor& a, const Tensor& b);

/// out[batch…, M, N] = a[batch…, M, K] · b[batch…, K, N]; the batches are equal, stretched ones by strides of 0; `out`
/// is contiguous.
void matmul(const Tensor& a, const Tensor& b, const Tensor& out, const Tensor& scratch, ThreadTeam& team);

}  // namespace millrace::cpu
