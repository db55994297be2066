// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <millrace/tensor/lod.h>

namespace millrace {

/// The integer plans of the sequence ops: which row goes where, and the LoD of the result. Kernels carry them out by gathering or
/// scattering rows.
///
/// A `level` names whose sequences an op works on: 0 is the outermost, negative numbers count from the innermost, which is −1; a missing
/// level is a LoDError that lists those present. The *items* of a sequence are its rows, or, above the innermost level, its sub-sequences,
/// which move as a whole. Outer levels stay as they are, and empty sequences are legal everywhere.

/// Result row r is row `rows[r]` of the input; −1 is a row that no input has.
struct SequencePlan {
  std::vector<std::int64_t> rows;
  LoD lod;
};

/// Row r of input i becomes row `targets[i][r]` of the result, which has `rows` rows.
struct JoinPlan {
  std::vector<std::vector<std::int64_t>> targets;
  std::int64_t rows = 0;
  LoD lod;
};

/// `level` counted from 0.
int sequence_level(const LoD& lod, int level);
/// Sequence i of `level` holds the rows [o[i], o[i + 1]).
std::vector<std::int64_t> row_offsets(const LoD& lod, int level);

/// The items of each sequence, last one first. [[3,1]] gives the rows 2 1 0 3.
SequencePlan make_reverse_plan(const LoD& lod, int level);
/// Items [offsets[i], offsets[i] + lengths[i]) of sequence i. ArgumentError, naming sequence and numbers, for a list of another size, a
/// negative number, or a piece that ends behind its sequence.
SequencePlan make_slice_plan(const LoD& lod, int level, std::span<const std::int64_t> offsets, std::span<const std::int64_t> lengths);
/// Outermost sequence i of `lod` (row i of `rows`, when there are no levels) `repeats[i]` times. ArgumentError for a negative number,
/// LoDError for a list of another size.
SequencePlan make_repeat_plan(const LoD& lod, std::int64_t rows, std::span<const std::int64_t> repeats);
/// The rows whose flag is set: innermost sequences get shorter, and stay when nothing is left. LoDError unless there is a flag for each
/// row.
SequencePlan make_keep_plan(const LoD& lod, const std::vector<bool>& keep);
/// For each row the rows start, start + 1, … start + length − 1 from it on: `length` entries, −1 where the innermost sequence has ended or
/// not begun. [[3]] from −1 on, 2 long: −1 0, 0 1, 1 2. ArgumentError for a length below 1.
SequencePlan make_window_plan(const LoD& lod, std::int64_t start, std::int64_t length);
/// Windows as above, where a place outside its sequence is a row of its own behind those of the input: first max(0, −start) rows that stand before
/// each sequence, then max(0, start + length − 1) that stand behind each. [[3]] from −1 on, 3 long: 3 0 1, 0 1 2, 1 2 4.
SequencePlan make_bordered_window_plan(const LoD& lod, std::int64_t start, std::int64_t length);
/// The room that each sequence gets when they are padded to `length`; −1 means the longest. ArgumentError, naming both, when a sequence is
/// longer.
std::int64_t padded_room(const LoD& lod, std::int64_t length);
/// The innermost sequences side by side: entry i·room + t is row t of sequence i, −1 behind its end, with room = padded_room(lod, length).
/// `lod` keeps the levels above the innermost.
SequencePlan make_pad_plan(const LoD& lod, std::int64_t length);
/// Back: the first lengths[i] of `padded` steps of sequence i; `outer` (perhaps without levels) is the LoD over the sequences.
/// ArgumentError for a length outside [0, padded], LoDError for a list of another size than `outer` says.
SequencePlan make_unpad_plan(std::span<const std::int64_t> lengths, std::int64_t padded, const LoD& outer);

/// Sequence i of the result holds the items of sequence i of each input, one input after the other. LoDError, naming both, when the levels
/// above, or the numbers of sequences or levels, differ.
JoinPlan make_concat_plan(std::span<const LoD> lods, int level);

/// The sequences of `level` whose flag is set, and the others, outer levels kept; `level` = depth (0 without levels) means rows. LoDError
/// unless there is a flag for each.
std::pair<SequencePlan, SequencePlan> make_mask_split_plan(const LoD& lod, std::int64_t rows, int level, const std::vector<bool>& mask);
/// Back: sequence i of `level` of the result is the next one of `lods[1]` where mask[i] is set, else of `lods[0]`. LoDError when the
/// numbers do not fit the mask, at any level.
JoinPlan make_mask_merge_plan(const LoD& unset, std::int64_t unset_rows, const LoD& set, std::int64_t set_rows, int level,
                              const std::vector<bool>& mask);

}  // namespace millrace
