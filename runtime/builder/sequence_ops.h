// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <millrace/runtime/builder/var.h>

/// The functions that append ops on sequences (docs/ops.md). A `level` names whose sequences: 0 is the outermost, −1 the innermost. Empty
/// sequences are legal everywhere. ProgramError when an op refuses its inputs.
namespace millrace::build {

/// One row for each sequence: average, sum, sqrt (the sum by √n), max, first or last of its rows; `empty` for one without rows.
Var sequence_pool(const Var& x, const std::string& kind, double empty = 0.0, int level = -1);
inline Var sequence_first_step(const Var& x, double empty = 0.0, int level = -1) { return sequence_pool(x, "first", empty, level); }
inline Var sequence_last_step(const Var& x, double empty = 0.0, int level = -1) { return sequence_pool(x, "last", empty, level); }
/// Along the rows of each sequence, each column on its own.
Var sequence_softmax(const Var& x, int level = -1);
/// The items (rows, or sub-sequences above the innermost level) of each sequence, last one first.
Var sequence_reverse(const Var& x, int level = -1);
/// Items [offset[i], offset[i] + length[i]) of sequence i.
Var sequence_slice(const Var& x, const Var& offset, const Var& length, int level = -1);
/// Sequence i holds the items of sequence i of each input.
Var sequence_concat(const std::vector<Var>& xs, int level = -1);
/// Outermost sequence i of x (without LoD: row i) as many times as sequence i of `ref_level` of y has items.
Var sequence_expand(const Var& x, const Var& y, int ref_level = -1);
/// Row i of x for each row of sequence i of y, with the LoD of y: the counterpart of a pooling.
Var sequence_expand_as(const Var& x, const Var& y, int level = -1);
/// Rows of `new_dim` elements: the elements of a sequence stay together.
Var sequence_reshape(const Var& x, std::int64_t new_dim);
/// ids [T] → [T, win_size]: each one and those after it in its sequence, then `pad_value`.
Var sequence_enumerate(const Var& ids, std::int64_t win_size, std::int64_t pad_value = 0);
/// The ids that are none of `tokens`.
Var sequence_erase(const Var& ids, const std::vector<std::int64_t>& tokens);
/// lengths [N] → [N, maxlen]: 1 in front of a length, 0 behind; `maxlen` (a scalar of i64 or i32 where it is a Var) −1 is the greatest
/// length.
Var sequence_mask(const Var& lengths, std::int64_t maxlen = -1, DType to = DType::i64);
Var sequence_mask(const Var& lengths, const Var& maxlen, DType to = DType::i64);
/// x [T, C], filter [context_length·C, M]: the rows context_start … context_start + context_length − 1 from each row on, zeros outside its
/// sequence, times the filter. With context_start = 1 − context_length it is causal. Where `padding` is given, its rows stand in for the
/// zeros: max(0, −context_start) that lie before each sequence, then max(0, context_start + context_length − 1) that lie behind.
Var sequence_conv(const Var& x, const Var& filter, std::int64_t context_start, std::int64_t context_length, const Var& padding = {});
/// x [T, C], filter [K, C]: each column of the next K rows, its own included, weighted and summed.
Var row_conv(const Var& x, const Var& filter);

struct PaddedSequences {
  Var rows;    ///< [N, L, …]
  Var length;  ///< i64 [N]
};
/// The innermost sequences side by side; `pad_value` (one element or a row; undefined: 0) behind their ends; `padded_length` −1 is the
/// longest.
PaddedSequences sequence_pad(const Var& x, const Var& pad_value = {}, std::int64_t padded_length = -1);
Var sequence_unpad(const Var& x, const Var& length);
/// x [N, C] with updates[j] added at [i, ids[j]] for each j in sequence i.
Var sequence_scatter(const Var& x, const Var& ids, const Var& updates);

struct TopRows {
  Var values;
  Var index;  ///< i64: which row of its sequence
};
/// The min(k, n) greatest of the n rows of each sequence, greatest first, each column on its own.
TopRows sequence_top_k(const Var& x, std::int64_t k);

/// Averages of the greatest of the scores that two sequences give each other. Sequence i of x [T] holds `channels` matrices, with a row for each row of
/// sequence i of `rows`, and a column for each row of sequence i of `columns`. The result has a row for each row: channel by channel, for each k the sum of
/// the k greatest scores, divided by k.
Var sequence_top_k_average(const Var& x, const Var& rows, const Var& columns, const std::vector<std::int64_t>& ks, std::int64_t channels);

struct MaskHalves {
  Var set;
  Var unset;
};
/// The sequences of `level` (its depth means rows) whose flag in `mask`, bool [N], is set, and the others.
MaskHalves split_by_mask(const Var& x, const Var& mask, int level = 0);
Var merge_by_mask(const Var& set, const Var& unset, const Var& mask, int level = 0);

/// The rows of x as other sequences: as those of `like`, or of these lengths.
Var lod_reset_like(const Var& x, const Var& like);
Var lod_reset(const Var& x, const Var& lengths);
Var lod_reset(const Var& x, const std::vector<std::int64_t>& lengths);
/// One more level inside: each row becomes a sequence of its length.
Var lod_append(const Var& x, const Var& lengths);
Var lod_append(const Var& x, const std::vector<std::int64_t>& lengths);

}  // namespace millrace::build
