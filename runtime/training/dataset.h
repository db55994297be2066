// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <millrace/tensor/lod_tensor.h>

namespace millrace::training {

/// Sequences of any lengths, and their targets: one for each outermost sequence, or one for each row. On the host.
struct Dataset {
  LoDTensor x;                       ///< [rows, …] with at least one level
  Tensor targets;                    ///< i64 classes [N] or [rows], or floating values [N, K] or [rows, K]
  bool per_row = false;              ///< targets belong to rows
  std::vector<std::string> classes;  ///< names of the classes 0, 1, …; empty: they have none
  std::string source;                ///< where it is from, for errors

  std::int64_t sequences() const { return x.lod().sequences(0); }
  std::int64_t rows() const { return x.rows(); }
  /// ShapeError, LoDError or DTypeError, naming `source`, when the parts do not fit one another.
  void validate() const;
  /// The outermost sequences `chosen`, in that order: their rows are copied one behind the other. IndexError.
  Dataset select(std::span<const std::int64_t> chosen) const;
};

/// Mean and standard deviation of each feature (the last axis of `x`) over all rows: sums in f64, row by row. A deviation of 0 is given as 1. DTypeError
/// unless `x` is floating.
struct FeatureScale {
  std::vector<double> mean;
  std::vector<double> deviation;
};
FeatureScale feature_scale(const Dataset& data);

}  // namespace millrace::training
