// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/kernels/conv_integer.h>
#include <millrace/kernels/cpu/arithmetic_kernels.h>
#include <millrace/kernels/cpu/int8_kernels.h>
#include <millrace/tensor/kernel_context.h>

namespace millrace::cpu {

/// The order in which a convolution reads bytes four at a time: a lane of 32 bits holds four channels of one place or, of groups with one channel, four taps along the last axis.
/// Weights are [group][unit, and a last one that sums the elements][step][4]; a step is one such four for one tap.
struct ConvIntegerForm {
  std::int64_t groups, units, channels;  ///< of a group
  std::int64_t taps[2];                  ///< along the axis in front, which a convolution along one axis has not, and along the last one
  bool by_taps;
  std::int64_t fours;  ///< of channels, or of taps along the last axis

  std::int64_t steps() const { return by_taps ? taps[0] * fours : fours * taps[0] * taps[1]; }
  /// Weights of a unit, with the zeros behind them.
  std::int64_t unit_stride() const { return (!gathers() ? steps() : (steps() + gathered_steps - 1) / gathered_steps * gathered_steps) * 4; }
  /// Rows of weights in front of the one that sums.
  std::int64_t unit_rows() const { return gathers() ? (units + gathered_unit_rows - 1) / gathered_unit_rows * gathered_unit_rows : units; }
  /// The place of a byte of a unit's weights in its group.
  std::int64_t place_of(std::int64_t unit, std::int64_t byte, bool in_tiles) const {
    constexpr std::int64_t bytes = gathered_steps * 4;
    if (!in_tiles) return unit * unit_stride() + byte;
    const std::int64_t rows = unit / gathered_unit_rows * gathered_unit_rows;
    return rows * unit_stride() + byte / bytes * gathered_unit_rows * bytes + (unit - rows) * bytes + byte % bytes;
  }
  std::int64_t group_stride() const { return (unit_rows() + 1) * unit_stride(); }
  /// Whether kernels may gather: with fewer units what is gathered is not read often enough.
  bool gathers() const { return !by_taps && units >= 8; }
};
ConvIntegerForm conv_integer_form(const ConvDesc& desc, const DDim& weights);

/// The steps on rows of sums, i32, `row` elements apart, without their results: a row has one unit, `unit` the first row's, or, with `across`, the units from
/// `unit` on.
ArithmeticCall<float> call_of(const ConvIntegerSteps& steps, const std::int32_t* sums, std::int64_t row, std::int64_t unit, bool across);

/// All of it; `out` [N, M, L1 (, L2)] is row-major.
void conv_integer(const PackedConvInteger& weights, const Tensor& x, std::int32_t zero, const ConvIntegerSteps& steps, const Tensor& out,
                  KernelContext& context);

}  // namespace millrace::cpu
