// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <millrace/tensor/error.h>
#include <millrace/tensor/seq_pos.h>

namespace millrace {

/// Levels of offsets over rows, outermost (0) first: level k indexes the sequences of level k+1, the last level indexes rows. Empty
/// sequences are legal at every level. Immutable and shared by pointer: copies are cheap, all members are thread-safe. A LoD without levels
/// says that rows are just rows.
///
/// The levels of a LoD are always consistent: each level starts at 0, never decreases, and ends at the number of sequences of the next.
/// Factories throw LoDError otherwise, whatever they are given.
class LoD {
 public:
  using Level = std::vector<std::int64_t>;

  /// No levels.
  LoD() noexcept = default;
  /// `from_lengths({{2, 1}, {3, 1, 2}})`: 2 sequences, of 2 and 1 sub-sequences, of 3, 1 and 2 rows.
  static LoD from_lengths(const std::vector<Level>& levels);
  /// `from_offsets({{0, 2, 3}, {0, 3, 4, 6}})` is the same.
  static LoD from_offsets(std::vector<Level> levels);
  /// One level of `sequences`, of which sequence `ids[i]` holds row i: the inverse of `row_ids`. `from_row_ids({0, 0, 2}, 4)` has lengths 2, 0, 1
  /// and 0. LoDError unless the ids are numbers of sequences that never decrease; OutOfMemoryError for more than 2^36 sequences.
  static LoD from_row_ids(const Level& ids, std::int64_t sequences);
  /// From the designs' form. LoDError too when `dim` is not the number of levels, or a level is null.
  static LoD from_seq_pos(const SeqPos& positions);
  /// The text of `to_string`, blanks allowed. ParseError says what was expected, and where; LoDError when the numbers do not fit.
  static LoD parse(std::string_view text);

  int depth() const noexcept { return levels_ ? static_cast<int>(levels_->size()) : 0; }
  bool empty() const noexcept { return depth() == 0; }
  /// Offsets of `level`, one more than it has sequences. A level that is not there is a LoDError that lists those present; so below.
  std::span<const std::int64_t> offsets(int level) const;
  Level lengths(int level) const;
  /// Number of sequences at `level`.
  std::int64_t sequences(int level) const;
  /// Number of rows. LoDError without levels.
  std::int64_t rows() const { return offsets(depth() == 0 ? 0 : depth() - 1).back(); }

  /// Offsets of every level counted in rows. (With empty sequences this loses structure: several LoDs have the same ones.)
  std::vector<Level> absolute_offsets() const;
  /// The rows [first, second) of the sequences [begin, end) at `level`. IndexError when there are fewer.
  std::pair<std::int64_t, std::int64_t> row_range(int level, std::int64_t begin, std::int64_t end) const;
  /// For each row, the sequence of `level` that holds it. OutOfMemoryError for more than 2^36 rows.
  Level row_ids(int level) const;

  /// LoDError, naming both numbers, unless this describes exactly `rows` rows. A LoD without levels fits any.
  void validate(std::int64_t rows) const;

  /// The sequences [begin, end) of `level` with all that lies below; outer levels are dropped. IndexError when there are fewer.
  LoD slice(int level, std::int64_t begin, std::int64_t end) const;
  /// The sequences `chosen` of level 0, in that order, with all that lies below. IndexError; OutOfMemoryError where a sequence that is
  /// chosen over and over makes more than 2^36 sequences.
  LoD select(std::span<const std::int64_t> chosen) const;
  /// Levels [begin, end) alone.
  LoD levels(int begin, int end) const;
  /// Without level 0. LoDError without levels.
  LoD erase_outermost() const;
  /// With one more level inside: each row becomes a sequence of its length. LoDError unless there is a length for each.
  LoD append(std::span<const std::int64_t> lengths) const;
  LoD append(const Level& lengths) const { return append(std::span<const std::int64_t>(lengths)); }
  /// With the levels of `inner` below these; `inner` must have as many outermost sequences as this has rows.
  LoD append(const LoD& inner) const;

  /// The designs' form. LoDError when an offset does not fit an `int`.
  SeqPos to_seq_pos() const;
  /// As lengths: `[[2,1],[3,1,2]]`; `[]` without levels.
  std::string to_string() const;
  /// The text of `to_string`; one of more than 200 characters ends behind them with `…`. Errors hold this text.
  std::string brief() const;

  friend bool operator==(const LoD& a, const LoD& b) noexcept;

 private:
  explicit LoD(std::vector<Level> checked);
  const Level& at(int level) const;

  std::shared_ptr<const std::vector<Level>> levels_;
};

}  // namespace millrace
