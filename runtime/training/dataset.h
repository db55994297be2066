// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <millrace/tensor/lod_tensor.h>

namespace millrace::training {

/// Sequences of any lengths, and their targets: one for each outermost sequence, one for each row, or a sequence of tokens for each outermost
/// sequence. On the host.
struct Dataset {
  LoDTensor x;                       ///< [rows, …] with at least one level
  Tensor targets;                    ///< i64 classes [N] or [rows], or floating values [N, K] or [rows, K]
  bool per_row = false;              ///< targets belong to rows
  std::vector<std::string> classes;  ///< names of the classes 0, 1, …; empty: they have none
  std::string source;                ///< where it is from, for errors
  LoD target_lod = {};  ///< one level: sequence n of the targets, i64 [tokens], belongs to sequence n of x. No level: no tokens
  std::vector<std::string> words = {};    ///< names of the words 0, 1, … that rows are; empty: they have none
  std::vector<std::string> columns = {};  ///< names of the features of a row; empty: they have none

  std::int64_t sequences() const { return x.lod().sequences(0); }
  std::int64_t rows() const { return x.rows(); }
  bool has_tokens() const { return !target_lod.empty(); }
  /// Terms of the loss of all rows: rows, sequences, or tokens with an end for each sequence.
  std::int64_t terms() const;
  /// ShapeError, LoDError or DTypeError, naming `source`, when the parts do not fit one another. IndexError for a class or a word that is not from 0 to
  /// 2²⁰ − 1, or a class without a name where classes have names.
  void validate() const;
  /// ArgumentError for the first element of the rows, or of floating targets, that is no finite number: it names `source`, the element's row, or sequence, and
  /// place there, and of rows the outermost sequence.
  void expect_finite() const;
  /// The outermost sequences `chosen`, in that order: their rows are copied one behind the other. IndexError.
  Dataset select(std::span<const std::int64_t> chosen) const;
};

/// Mean and standard deviation of each feature (the last axis of `x`) over all rows: sums in f64, row by row, of numbers near 1, so squares neither overflow
/// nor vanish. A feature that is the same in all rows has that mean, and the deviation 1. DTypeError unless `x` is floating. ArgumentError, naming `source` and
/// the feature, where the dtype of `x` does not hold the deviation as a normal number, or the distance of a row from the mean.
struct FeatureScale {
  std::vector<double> mean;
  std::vector<double> deviation;
};
FeatureScale feature_scale(const Dataset& data);

}  // namespace millrace::training
