// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace {

/// The chains of `square_sums`.
inline constexpr std::int64_t square_chains = 16;

/// Adds the squares of `count` elements side by side to `sums`: that of element i to sum i mod 16, ascending. Elements are widened to f64, squared and added,
/// each operation rounded, so bits depend on no instruction set.
void square_sums(const float* x, std::int64_t count, double (&sums)[square_chains]);
void square_sums(const double* x, std::int64_t count, double (&sums)[square_chains]);

}  // namespace millrace
