// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace::cuda {

/// Costs of a step of a recurrent kernel, in nanoseconds. Barriers and the exchange are measured on an H200; the rest is derived from its rates.
struct RecurrentCosts {
  static constexpr double block = 40, cluster = 205, grid = 933;
  static constexpr double clock = 0.57;        ///< of a cycle
  static constexpr double second_cache = 600;  ///< until what is read from it is there
  static constexpr double cache_rate = 0.028;  ///< a byte of it, for each multiprocessor
  static constexpr double mma = 8,
                          mma_latency = 33;  ///< cycles: of 8 units × 8 rows × 16 k (tf32: 8) for a multiprocessor; of one step of a chain
  static constexpr double fma = 16, fma_latency = 4;  ///< of 8 units × 8 rows × 8 k; of one k
  static constexpr double pointwise = 1300;  ///< of the functions of 8 units × 8 rows, by the machine code: each waits for the one before
};

}  // namespace millrace::cuda
