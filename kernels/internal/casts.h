// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cpu/cast.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/implementations.h>

namespace millrace::internal {

/// out = x in the dtype of `out`: x, out of the same extents. The rules stand in kernels/cast.h.
inline constexpr Implementations<const Tensor&, const Tensor&> casts{"cast", {{"cuda", cuda::cast}}, cpu::cast};

}  // namespace millrace::internal
