// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The k greatest elements of each sequence, for each column on its own.
struct SequenceTopK {
  Tensor values;                      ///< [T', …], greatest first
  Tensor places;                      ///< i64 of the same extents: which row of its sequence each one was
  std::vector<std::int64_t> offsets;  ///< of the sequences in the result: min(k, n) rows of n
};

/// The k greatest elements of the sequences of x [T, …] in floats, i64 or i32. Sequence i is the rows [offsets[i], offsets[i + 1]). Equal elements come in the order of their
/// rows; NaN counts as the greatest. ArgumentError for a negative k, LoDError when the offsets do not fit the rows.
SequenceTopK sequence_top_k(const Tensor& x, const std::vector<std::int64_t>& offsets, std::int64_t k, StreamRef stream);

/// The options of `sequence_top_k_average`.
struct SequenceTopKAverage {
  std::vector<std::int64_t> ks;  ///< each ≥ 1
  std::int64_t channels = 1;     ///< ≥ 1
};
/// PaddlePaddle Fluid's sequence_topk_avg_pooling, of scores that two sequences give each other: x [T] or [T, 1] in floats, whose sequence
/// i holds `channels` matrices of row_lengths[i] × column_lengths[i], one behind the other. Gives [Σ row_lengths, channels · |ks|]: for
/// each row of sequence i, channel by channel, for each k the sum of the k greatest elements of the row of that matrix, greatest first,
/// divided by k; where a row has fewer than k, of all of them. NaN counts as the greatest. Sums run in f64 for f64 and in f32 otherwise.
/// ArgumentError for a k or channels below 1, LoDError when lengths and offsets do not fit one another.
Tensor sequence_top_k_average(const Tensor& x, const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& row_lengths,
                              const std::vector<std::int64_t>& column_lengths, const SequenceTopKAverage& options, StreamRef stream);

/// The k greatest elements along an axis, or the k least, both in order.
struct TopK {
  Tensor values;  ///< extent k along the axis
  Tensor places;  ///< i64 of the same extents: where along the axis each one was
};

/// ONNX TopK of floats, i64 or i32. Equal elements come in their order; NaN counts as the greatest. ArgumentError for a k that is negative
/// or above the extent of the axis.
TopK top_k(const Tensor& x, std::int64_t k, int axis, bool largest, StreamRef stream);

}  // namespace millrace
