// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include <millrace/kernels/lstm_cell.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// How gate columns [4·H] are spread over blocks of units.
struct LstmLayout {
  std::int64_t hidden = 0;
  std::int64_t lanes = 1;
  std::int64_t panel = 4;     ///< vectors of columns in a panel of a product
  std::int64_t together = 1;  ///< rows of a matrix side by side: 2 of bf16 under f32

  std::int64_t blocks() const { return (hidden + lanes - 1) >> std::countr_zero(static_cast<std::uint64_t>(lanes)); }  // a power of two
  /// Elements of `vectors` packed vectors of units: k·4 of a matrix, 4 of a bias, 3 of peepholes.
  std::int64_t elements(std::int64_t vectors) const { return blocks() * vectors * lanes; }
  std::int64_t units(std::int64_t block) const { return std::min(lanes, hidden - block * lanes); }
  /// Rows of a matrix with those that fill up the last pair.
  std::int64_t padded(std::int64_t rows) const { return (rows + together - 1) / together * together; }
};
LstmLayout lstm_layout(const LstmPlan& plan);

/// Packs from[rows, gates·H] (any strides) as [block][row][gate][lane], padded with zeros; f32 or f64, or bf16 as [block][pair of
/// rows][gate][lane][2]. `panels`: of a product, with gates `lstm_gate_step` apart, and each panel of a block by itself (lstm_kernels.h).
void pack_gates(const LstmLayout& layout, const Tensor& from, std::int64_t gates, bool panels, const Tensor& to, ThreadTeam& team);

/// The kinds of `x` and `h` of a step.
enum class LstmGiven : std::uint8_t {
  rows,          ///< x and h
  projection,    ///< x·W and h
  both_products  ///< x·W and h·R
};

/// One step in the wide dtype. All 2-D with contiguous rows.
void lstm_cell(const LstmPlan& plan, const PackedLstm& weights, const Tensor& x, LstmGiven given, const Tensor& h, const Tensor& c,
               const Tensor& h_out, const Tensor& c_out, ThreadTeam& team);

}  // namespace millrace::cpu
