// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

struct SampleOptions {
  std::uint64_t seed = 0;
  double temperature = 1;  ///< > 0; scores are divided by it
  std::int64_t top = 0;    ///< only so many of the best, the lowest among those as good; 0: all
};

struct Sampled {
  Tensor tokens;  ///< i64 [P, 1]
  Tensor scores;  ///< [P, 1]: what the row said of its token
};
/// One token for each row of `scores` [P, K], floats, K ≥ 1: token k with a probability in proportion to
/// exp(score / temperature); −∞ and NaN never. A row that allows nothing gives token 0 with a score of −∞.
///
/// Random numbers are counter-based (Philox 4x32-10, Salmon et al. 2011): a row's one number depends on `seed`, its key and
/// `step` alone, so it does not depend on the other rows. `keys` i64 or i32, [P] or [P, 1]; `step` i64 or i32 with
/// one element. With w_k = exp(score_k / temperature − m) in f64, m the greatest, and c_k the running sum of w in ascending
/// order, the token is the first with c_k > u·c_last, u in [0, 1) of 53 bits. ShapeError, DTypeError, ArgumentError.
Sampled sample_tokens(const Tensor& scores, const Tensor& keys, const Tensor& step, const SampleOptions& options, StreamRef stream);

}  // namespace millrace
