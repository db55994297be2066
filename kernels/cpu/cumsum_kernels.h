// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::cpu {

/// Running sums along `n` steps for each of `columns` columns, whose elements lie side by side: step i of x is at from + i·from_step, that of the result at
/// to + i·to_step. T is float or double.
void running_columns(const float* from, std::int64_t from_step, float* to, std::int64_t to_step, std::int64_t n, std::int64_t columns,
                     bool exclusive);
void running_columns(const double* from, std::int64_t from_step, double* to, std::int64_t to_step, std::int64_t n, std::int64_t columns,
                     bool exclusive);

}  // namespace millrace::cpu
