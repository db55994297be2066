// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cpu/mapped_copy.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/implementations.h>

namespace millrace::internal {

/// x, maps, otherwise, out of kernels/cpu/mapped_copy.h.
inline constexpr Implementations<const Tensor&, const cpu::IndexMaps&, const Tensor*, const Tensor&> mapped_copies{
    "mapped copy", {{"cuda", cuda::mapped_copy}}, cpu::mapped_copy};

}  // namespace millrace::internal
