// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <millrace/tensor/lod.h>
#include <millrace/tensor/sequence_order.h>

namespace millrace {

/// The integer plans of unpack, pack, shrink and re-order: which row goes where. A *slab* is the rows of all steps, one step after another.
/// Plans are plain values; kernels carry them out by gathering rows.

/// The plan by which ragged rows become steps. Row r of the slab is row `sources[r]` of the input.
struct UnpackPlan {
  SequenceOrder order;
  std::vector<std::int64_t> sources;
  /// Step t is the rows [step_offsets[t], step_offsets[t + 1]) of the slab; one more than there are steps.
  std::vector<std::int64_t> step_offsets;
  /// The levels below `order.level()` that step t keeps: without levels when a step is made of rows.
  std::vector<LoD> step_lods;
  /// True when the slab is the input, row for row: nothing needs to be copied.
  bool identity = true;

  std::int64_t steps() const noexcept { return static_cast<std::int64_t>(step_lods.size()); }
  /// The input's rows that make up `step`, in order. IndexError.
  std::span<const std::int64_t> step_rows(std::int64_t step) const;
};

/// The plan of `unpack(x, level, sort_by_length)` for an input of `rows` rows. Case: rows 0…9 of [[3,6,1]], sorted, give the steps [3,0,9]
/// [4,1] [5,2] [6] [7] [8]; reversed, [8,2,9] [7,1] [6,0] [5] [4] [3]. LoDError when the level is missing (it lists those present) or the
/// LoD has another number of rows.
UnpackPlan make_unpack_plan(const LoD& lod, int level, bool sort_by_length, std::int64_t rows, bool reverse = false);

/// The plan by which steps become ragged rows again, in the caller's order. Row r of the result is row `sources[r]` of the slab.
struct PackPlan {
  std::vector<std::int64_t> sources;
  std::vector<std::int64_t> step_offsets;
  /// The LoD of the result: the outer levels and `level` as the order kept them, then the levels that the steps brought.
  LoD lod;
  bool identity = true;

  /// The (step, row of that step) that is row `row` of the result. IndexError.
  std::pair<std::int64_t, std::int64_t> at(std::int64_t row) const;
};

/// The plan of `pack(array, level, order)`. `step_rows[t]` is how many rows the array's slot t has; `step_lods[t]` its LoD (an empty span:
/// none has one). Without levels slot t must have one row for each live sequence, with levels one outermost sequence for each: LoDError
/// names the step and both numbers. All slots have the same depth; with no steps at all the result has `order.depth_below()` levels below.
PackPlan make_pack_plan(const SequenceOrder& order, std::span<const std::int64_t> step_rows, std::span<const LoD> step_lods = {});
/// The plan of `pack` where every slot has one row for each live sequence.
PackPlan make_pack_plan(const SequenceOrder& order);

/// For each sequence of `order.level()`, in the caller's order, the row of the slab that the last of its steps wrote when each step wrote a
/// row for each live sequence; −1 for an empty one.
std::vector<std::int64_t> last_sources(const SequenceOrder& order);

/// Chosen rows of a tensor, in the order of the result, and the result's LoD.
struct RowSelection {
  std::vector<std::int64_t> rows;
  LoD lod;
  /// True when `rows` is 0, 1, 2, …: a view of the first rows is enough.
  bool prefix = true;

  std::int64_t count() const noexcept { return static_cast<std::int64_t>(rows.size()); }
};

/// The sequences `chosen` of level 0 of `lod`, or the rows `chosen` of `rows` when `lod` has no levels. IndexError, LoDError;
/// OutOfMemoryError for more than 2^36 sequences or rows.
RowSelection select_sequences(std::span<const std::int64_t> chosen, std::int64_t rows, const LoD& lod = {});

/// The rows of the batch at step `from` that still live at step `to` ≥ `from`: the plan of `shrink`. A prefix when the order is sorted. `from` is
/// −1 for a re-ordered boot or static input. The batch has `rows` rows, one for each sequence alive at `from`, or with a LoD one outermost
/// sequence for each; LoDError names both numbers, ArgumentError both steps when `to` is before `from`.
RowSelection shrink_rows(const SequenceOrder& order, std::int64_t from, std::int64_t to, std::int64_t rows, const LoD& lod = {});
RowSelection shrink_rows(const SequenceOrder& order, std::int64_t from, std::int64_t to);

/// A tensor with one row (with a LoD: one outermost sequence) for each sequence of `order.level()`, in the caller's order, as the batch wants
/// it: the plan for boot states and static inputs. LoDError when the numbers differ.
RowSelection reorder_rows(const SequenceOrder& order, std::int64_t rows, const LoD& lod = {});
RowSelection reorder_rows(const SequenceOrder& order);

}  // namespace millrace
