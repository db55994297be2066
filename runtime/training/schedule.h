// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::training {

/// The learning rate as a function of the step alone, so that a resumed job goes on with the rate that it would have had.
///
/// Step s = 0, 1, 2, … . While s < warmup the rate is base·(s + 1) / warmup. From there on, with n = s − warmup and d = decay_steps:
///
///     constant      base
///     step          base·factor^⌊n / every⌋
///     exponential   base·factor^(n / every)
///     linear        base + (least − base)·min(n / d, 1)
///     cosine        least + (base − least)·(1 + cos(π·min(n / d, 1))) / 2       Loshchilov and Hutter, "SGDR", 2017, without restarts
struct Schedule {
  enum class Kind : std::uint8_t { constant, step, exponential, linear, cosine };
  Kind kind = Kind::constant;
  double base = 1e-3;
  std::int64_t warmup = 0;
  std::int64_t every = 1;        ///< step, exponential: ≥ 1
  double factor = 0.1;           ///< step, exponential: > 0
  std::int64_t decay_steps = 1;  ///< linear, cosine: ≥ 1
  double least = 0;              ///< linear, cosine

  /// ArgumentError names the number that is out of range.
  double at(std::int64_t step) const;
};

/// ArgumentError, as of `at`, for a number that is out of range, though it counts behind the warm-up alone.
void check(const Schedule& schedule);

}  // namespace millrace::training
