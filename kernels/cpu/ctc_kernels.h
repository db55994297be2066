// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::cpu {

/// Terms of `count` sums, side by side. `open` says, by a number that is not 0, where there is a third one.
struct LogTerms {
  const double *first, *second, *third, *open;
};

/// to[i] = log(exp(first[i]) + exp(second[i]) + exp(third[i])), as m + log1p(of the exponentials of the others less m, added up) with m the greatest, by
/// instruction set. Where m is infinite that is m; a NaN stays one. `to` is none of the terms.
void log_sums_of_three(const LogTerms& terms, double* to, std::int64_t count);

}  // namespace millrace::cpu
