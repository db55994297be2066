// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/models/import/with_onnx/importer.h>

/// Axes that a run computes. Elements are moved by `transpose_by`, so that an op along the last axis does the rest.
namespace millrace::importing {

/// The i64 list of an input of one number or of a list of them: [1] or [k].
VarId list_input(Importer& to, const Node& node, std::size_t input);

/// Some of the axes 0 … rank − 1, as a run names them.
class NamedAxes {
 public:
  /// `axes` i64 [k], of `rank` axes; negative ones count from the end.
  NamedAxes(Importer& to, VarId axes, int rank);

  /// Whether each axis is named: bool [rank].
  VarId mask() const noexcept { return mask_; }
  /// The axes that are named, ascending; the others: i64 lists.
  VarId named() const { return where_true(mask_); }
  VarId others() const { return where_true(to_.emit1("logical_not", {mask_})); }
  /// k, or −1 where only a run knows it.
  std::int64_t count() const noexcept { return count_; }
  /// Names all axes, where none was named.
  void all_if_none();

 private:
  VarId where_true(VarId mask) const;

  Importer& to_;
  VarId axes_;
  VarId mask_ = no_var;
  std::int64_t count_;
};

/// `x` with the axis named by `axis`, an i64 scalar, as its last; applied twice it gives `x`.
VarId swapped_with_last(Importer& to, VarId x, VarId axis);
/// `x`, whose rank may be unknown, as one of that rank.
VarId with_rank(Importer& to, VarId x, std::int64_t rank);

}  // namespace millrace::importing
