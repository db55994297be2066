// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/kernels/sequence_top_k.h>
#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// The first elements of each sequence, greatest first, as many as `made` has rows for it. All tensors are row-major.
void sequence_top_k(const Tensor& x, const std::vector<std::int64_t>& offsets, bool largest, const Tensor& values, const Tensor& places,
                    const std::vector<std::int64_t>& made, ThreadTeam& team);

/// The first elements along the last axis, as many as `values` has: f32 and f64, row-major tensors.
void top_k(const Tensor& x, bool largest, const Tensor& values, const Tensor& places, ThreadTeam& team);

/// Of row-major elements; `firsts`: the first row of each sequence in `out`.
void sequence_top_k_average(const Tensor& x, const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& firsts,
                            const std::vector<std::int64_t>& columns, const SequenceTopKAverage& options, const Tensor& out,
                            ThreadTeam& team);

}  // namespace millrace::cpu
