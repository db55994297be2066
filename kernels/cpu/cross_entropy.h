// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// IndexError for the first of contiguous labels of i64 that is none of the classes, and not `ignore`.
void check_labels(const Tensor& labels, std::int64_t classes, std::int64_t ignore);

/// The losses and gradients of kernels/cross_entropy.h, for contiguous tensors of f32 or f64.
void cross_entropy(const Tensor& x, const Tensor& labels, std::int64_t ignore, const Tensor& out, ThreadTeam& team);
void cross_entropy_gradient(const Tensor& gradient, const Tensor& x, const Tensor& labels, std::int64_t ignore, const Tensor& out,
                            ThreadTeam& team);

}  // namespace millrace::cpu
