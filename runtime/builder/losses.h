// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/runtime/builder/var.h>

/// Losses of one element, as functions that append ops, and what training drops at random. Rows with LoD may be ragged and none at all: a mean
/// over no rows is 0. ProgramError when an op refuses its inputs.
namespace millrace::build {

/// The mean of `losses` [rows, …] over all elements, without LoD: [], 0 of none. Sums are those of kernels/reduce.h.
Var mean_loss(const Var& losses);

constexpr std::int64_t no_label = -100;
/// The mean of −log softmax(x)[label] over the rows [rows, K] whose `labels` (i64 or i32 [rows] or [rows, 1], with the LoD of x) are not
/// `ignore_index`.
Var softmax_cross_entropy_loss(const Var& x, const Var& labels, std::int64_t ignore_index = no_label);
/// The mean of (x − target)² over all elements, of one LoD.
Var mean_squared_error(const Var& x, const Var& target);
/// The mean over sequences of `ctc_loss` (builder/decoding.h).
Var mean_ctc_loss(const Var& log_probabilities, const Var& labels, std::int64_t blank, bool zero_infinity = false);
/// The mean over sequences of −log p(labels | emission) (`linear_chain_crf`).
Var mean_crf_loss(const Var& emission, const Var& transition, const Var& labels);

/// The keys of the random numbers of a row, beside `DropoutForm`: i64 or i32.
struct RandomKeys {
  Var sample;      ///< [rows] or [rows, 1]: the number of the row's sequence in the data set
  Var step = {};   ///< likewise, or one element: the row's place in its sequence; undefined: 0, one mask for all rows of a sequence
  Var epoch = {};  ///< one element; undefined: 0
};
struct DropoutForm {
  double rate = 0.5;
  std::int64_t seed = 0;    ///< of the training run
  std::int64_t number = 0;  ///< of this dropout in the program: equal numbers drop the same
  bool training = true;     ///< false: x itself
};

/// Keys for the rows of `x`, with LoD, of sequences numbered by `samples` ([sequences] of the last level): `sample` and `step`.
RandomKeys keys_of_rows(const Var& x, const Var& samples, const Var& epoch = {});
/// The same mask for all rows of a sequence (variational dropout): keys without a step.
RandomKeys keys_of_sequences(const RandomKeys& rows);

/// Each element of x [rows, …] is 0 with probability `rate`, else x / (1 − rate): kernels/dropout.h.
Var dropout(const Var& x, const RandomKeys& keys, const DropoutForm& form);
/// 1 where an element stays, else 0, like x [rows, …]; the mean keep rate where `training` is false.
Var keep_mask(const Var& x, const RandomKeys& keys, const DropoutForm& form);
/// Zoneout (Krueger et al., 2016): a unit keeps its value `before` with probability `rate`, else takes `after`. `keeps`, like both:
/// a `keep_mask` of rate 1 − rate of zoneout, computed outside of the loop.
///
///     Var keeps = keep_mask(x, keys, {.rate = 0.9, …});   // of 10 % of the units
///     … h = zoneout(h_before, h_after, steps_of_keeps) …
Var zoneout(const Var& before, const Var& after, const Var& keeps);

}  // namespace millrace::build
