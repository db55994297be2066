// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <millrace/tensor/lod.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The order in which a loop over the steps of sequences sees them: what `unpack` hands out, and `pack`, `shrink` and a re-ordered boot
/// need.
///
/// Step t takes item t (from its end: when reversed) of every sequence of `level` that is longer than t: a row when `level` is the last
/// level, else a sub-sequence. A *rank* is a sequence's position in the batch of all sequences: sorted, longest first with ties stable, so
/// that those alive at a step are a prefix; unsorted, the caller's order. Immutable, shared by pointer, thread-safe.
class SequenceOrder {
 public:
  /// One line of the rank table: a sequence of `level`, by its number, and how many items it has.
  struct Ranked {
    std::int64_t index = 0;
    std::int64_t length = 0;
    friend bool operator==(const Ranked&, const Ranked&) = default;
  };

  /// No sequences, no steps.
  SequenceOrder() : SequenceOrder(LoD::from_lengths({{}}), 0, false) {}
  /// The order over the sequences of `level` (0 = outermost) of `lod`. A missing level is a LoDError that lists those present.
  SequenceOrder(const LoD& lod, int level, bool sort_by_length, bool reverse = false);

  int level() const noexcept;
  bool sorted() const noexcept;
  /// Each sequence goes from its last item to its first.
  bool reversed() const noexcept;
  /// The levels at and above `level`: what `pack` puts back, empty sequences included.
  const LoD& lod() const noexcept;
  /// The number of levels that lay below `level`: 0 when a step is made of rows.
  int depth_below() const noexcept;
  /// Number of sequences, empty ones included.
  std::int64_t sequences() const noexcept;
  /// Number of steps: the longest sequence's length.
  std::int64_t steps() const noexcept;
  /// Number of sequences alive at `step` ≥ 0. Step −1, before the first, is where a boot state stands: there all sequences live, the empty
  /// ones too. 0 beyond the last step. IndexError below −1.
  std::int64_t live(std::int64_t step) const;
  /// The ranks alive at `step`, ascending: 0 … live−1 when sorted.
  std::vector<std::int64_t> live_ranks(std::int64_t step) const;

  /// Rank → sequence, as numbered at `level`.
  std::span<const std::int64_t> permutation() const noexcept;
  /// Sequence → rank.
  std::vector<std::int64_t> inverse() const;
  /// Rank → length.
  std::span<const std::int64_t> lengths() const noexcept;
  std::vector<Ranked> rank_table() const;
  /// `permutation` as the designs' i32 tensor of extents [sequences]. OverflowError when a number does not fit.
  Tensor indices_map() const;

  /// "order of [[3,6,1]] at level 0, longest first: [1,0,2]"; reversed: "…, longest first, from the end: [1,0,2]".
  std::string to_string() const;
  friend bool operator==(const SequenceOrder& a, const SequenceOrder& b) noexcept;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace millrace
