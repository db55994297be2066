// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/dropout.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Row-major x and out.
void dropout(const Tensor& x, const Tensor& samples, const Tensor* steps, const Tensor* epoch, const DropoutOptions& options,
             const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
