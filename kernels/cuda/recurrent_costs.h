// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace::cuda {

/// Costs of a step of a recurrent kernel, in nanoseconds. Barriers, the exchange, `asking`, `product_start` and the costs of weights in
/// registers are measured on an H100. The other costs are derived from its rates.
struct RecurrentCosts {
  static constexpr double block = 40, cluster = 740, grid = 1300;
  static constexpr double asking = 900;        ///< until the loads of a step are under way: each waits for one before it
  static constexpr double clock = 0.57;        ///< of a cycle
  static constexpr double second_cache = 600;  ///< until what is read from it is there
  static constexpr double cache_rate = 0.028;  ///< a byte of it, for each multiprocessor
  static constexpr double mma = 8, mma_latency = 65,
                          product_start =
                              900;  ///< cycles: of 8 units × 8 rows × 16 k (tf32: 8) for a multiprocessor; of one step of a chain,
                                    ///< whose weights come from shared memory; until the first step of it
  static constexpr double fma = 16, fma_latency = 4;  ///< of 8 units × 8 rows × 8 k; of one k

  /// The pointwise part of 8 units × 8 rows, which is two rows of a lane, in cycles of one warp, by the machine code of the timed kernel for
  /// sm_90a on the path of a dense step of f16: each instruction says how many cycles its successor waits and for which results, of which one of
  /// the function unit takes 26 and a load from the first cache 38. The functions of all rows interleave; the stores go row by row.
  static constexpr double functions = 655, approximate_functions = 283;  ///< from the sums to c and h of one tile: one behind the other
  static constexpr double function_units = 42,
                          approximate_function_units = 20;  ///< operations of the function unit for a tile (exp2, reciprocal, rounding)
  static constexpr double function_rate = 8;                ///< between two of them
  static constexpr double row = 187;                        ///< of a row: h to the other blocks
  static constexpr double late = 81, late_row = 173;        ///< c, h and y to where they leave the kernel; of a row
  static constexpr double pointwise_instructions = 541,
                          wide_pointwise_instructions = 2349;  ///< of one tile and of four, in f16: with others, count again

  /// With weights in registers (with_cuda/held_lstm.cuh), in cycles, measured on an H100: of a pass over one or two tiles, and for each pair of a
  /// warp in it; for each of a multiprocessor whose weights lie in shared memory; the pointwise part of one and of two rows of a lane, and for each
  /// chain; the barriers of a slab.
  static constexpr double held_pass = 180, one_pair = 290, two_pairs = 520, shared_pair = 95;
  static constexpr double one_row = 560, two_rows = 1000, held_chain = 60, held_slab = 120;
  /// The exchange of h with its waits, in cycles: of a block alone; of a cluster, with a share for each block and each tile; through global memory,
  /// with a share for each tile.
  static constexpr double held_block = 120, held_cluster = 450, held_peer = 20, held_cluster_tile = 480, held_grid = 3000,
                          held_grid_tile = 700;

  /// The time of the pointwise part, in nanoseconds, of a warp that takes so many tiles at a time.
  static constexpr double pointwise(int tiles, bool approximate) {
    const double chain = approximate ? approximate_functions : functions;
    const double units = tiles * (approximate ? approximate_function_units : function_units) * function_rate;
    return clock * ((units > chain ? units : chain) + tiles * 2 * row);
  }
  /// The time of the outputs behind that part, of such a warp. It passes while other blocks are waited for, where a warp takes its tiles at once.
  static constexpr double outputs(int tiles) { return clock * (late + tiles * 2 * late_row); }
};

}  // namespace millrace::cuda
