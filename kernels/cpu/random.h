// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/random.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Fills `out`, row-major, f32 or f64.
void random_numbers(std::uint64_t key, const RandomOptions& options, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
