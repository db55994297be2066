// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <millrace/kernels/unary.h>

namespace millrace::cpu {

/// out[i] = f(x[i]) for `count` contiguous elements; `out` may be `x`. Every float function of `Unary` but is_nan and
/// is_inf. Runs the instruction set of this machine.
void unary_run(Unary kind, const UnaryParams& params, const float* x, float* out, std::size_t count);
void unary_run(Unary kind, const UnaryParams& params, const double* x, double* out, std::size_t count);

}  // namespace millrace::cpu
