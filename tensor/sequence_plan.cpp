// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/sequence_plan.h>

#include <algorithm>
#include <string>

#include <millrace/tensor/checked.h>
#include <millrace/tensor/ragged.h>

namespace millrace {
namespace {

using Indices = std::vector<std::int64_t>;

std::string text(std::int64_t number) { return std::to_string(number); }
std::int64_t count(std::span<const std::int64_t> list) { return static_cast<std::int64_t>(list.size()); }
std::int64_t at(std::span<const std::int64_t> list, std::int64_t i) { return list[static_cast<std::size_t>(i)]; }

/// The items `chosen` of the sequences of `level`, whose lengths become `lengths`.
SequencePlan choose_items(const LoD& lod, int level, const Indices& chosen, const Indices& lengths) {
  RowSelection selected = select_sequences(chosen, lod.rows(), lod.levels(level + 1, lod.depth()));
  return {std::move(selected.rows), lod.levels(0, level).append(lengths).append(selected.lod)};
}

/// Items of several inputs in a new order.
class Weaver {
 public:
  /// `inner` is the LoD inside an item; without levels the items are rows. All inputs have the same depth.
  void add_input(const LoD& inner, std::int64_t rows) {
    inners_.push_back(inner);
    plan_.targets.emplace_back(static_cast<std::size_t>(rows), std::int64_t{-1});
    lengths_.resize(static_cast<std::size_t>(inner.depth()));
  }
  void take(std::size_t input, std::int64_t item) {
    const LoD& inner = inners_[input];
    std::int64_t begin = item;
    std::int64_t end = item + 1;
    for (int level = 0; level < inner.depth(); ++level) {
      const auto offsets = inner.offsets(level);
      for (std::int64_t i = begin; i < end; ++i) lengths_[static_cast<std::size_t>(level)].push_back(at(offsets, i + 1) - at(offsets, i));
      begin = at(offsets, begin);
      end = at(offsets, end);
    }
    for (std::int64_t row = begin; row < end; ++row) plan_.targets[input][static_cast<std::size_t>(row)] = plan_.rows++;
  }
  JoinPlan finish(const LoD& outer) {
    plan_.lod = outer.append(LoD::from_lengths(lengths_));
    return std::move(plan_);
  }

 private:
  std::vector<LoD> inners_;
  std::vector<LoD::Level> lengths_;
  JoinPlan plan_;
};

/// Number of sequences of `level`, or of rows when it lies below the innermost one.
std::int64_t units_at(const LoD& lod, std::int64_t rows, int level) { return level == lod.depth() ? rows : lod.sequences(level); }

/// The number of sequences of `level` in each sequence above; empty when there is no level above.
Indices units_above(const LoD& lod, int level) { return level == 0 ? Indices{} : lod.lengths(level - 1); }

void check_mask_level(const char* op, const LoD& lod, std::int64_t rows, int level) {
  lod.validate(rows);
  if (level < 0 || level > lod.depth())
    throw LoDError(std::string(op) + ": expected a level from 0 to " + text(lod.depth()) + " of " + lod.brief() +
                   " (the last means rows), found " + text(level));
}

}  // namespace

int sequence_level(const LoD& lod, int level) {
  const int counted = level < 0 ? level + lod.depth() : level;
  lod.offsets(level < 0 && counted < 0 ? level : counted);  // says what is present
  return counted;
}

Indices row_offsets(const LoD& lod, int level) {
  const auto first = lod.offsets(level);
  Indices rows(first.begin(), first.end());
  for (int inner = level + 1; inner < lod.depth(); ++inner) {
    const auto offsets = lod.offsets(inner);
    for (std::int64_t& row : rows) row = at(offsets, row);
  }
  return rows;
}

SequencePlan make_reverse_plan(const LoD& lod, int level) {
  const int from = sequence_level(lod, level);
  const auto offsets = lod.offsets(from);
  Indices chosen;
  chosen.reserve(static_cast<std::size_t>(offsets.back()));
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
    for (std::int64_t item = offsets[i + 1]; item-- > offsets[i];) chosen.push_back(item);
  return choose_items(lod, from, chosen, lod.lengths(from));
}

SequencePlan make_slice_plan(const LoD& lod, int level, std::span<const std::int64_t> offsets, std::span<const std::int64_t> lengths) {
  const int from = sequence_level(lod, level);
  const std::int64_t sequences = lod.sequences(from);
  if (count(offsets) != sequences || count(lengths) != sequences)
    throw ArgumentError("sequence_slice: expected an offset and a length for each of " + text(sequences) + " sequences, found " +
                        text(count(offsets)) + " and " + text(count(lengths)));
  const auto starts = lod.offsets(from);
  Indices chosen;
  for (std::int64_t i = 0; i < sequences; ++i) {
    const std::int64_t held = at(starts, i + 1) - at(starts, i);
    const std::int64_t offset = at(offsets, i);
    const std::int64_t length = at(lengths, i);
    if (offset < 0 || length < 0 || offset > held || length > held - offset)
      throw ArgumentError("sequence_slice: expected a piece within sequence " + text(i) + " of " + text(held) + " items, found offset " +
                          text(offset) + " and length " + text(length));
    for (std::int64_t item = 0; item < length; ++item) chosen.push_back(at(starts, i) + offset + item);
  }
  return choose_items(lod, from, chosen, {lengths.begin(), lengths.end()});
}

SequencePlan make_repeat_plan(const LoD& lod, std::int64_t rows, std::span<const std::int64_t> repeats) {
  lod.validate(rows);
  const std::int64_t items = units_at(lod, rows, 0);
  if (count(repeats) != items)
    throw LoDError("sequence_expand: expected " + text(items) + (lod.empty() ? " rows" : " sequences") +
                   " to repeat, one number each, found " + text(count(repeats)) + " numbers");
  Indices chosen;
  for (std::int64_t i = 0; i < items; ++i) {
    const std::int64_t times = at(repeats, i);
    if (times < 0)
      throw ArgumentError("sequence_expand: expected to repeat sequence " + text(i) + " 0 times or more, found " + text(times));
    chosen.insert(chosen.end(), static_cast<std::size_t>(times), i);
  }
  RowSelection selected = select_sequences(chosen, rows, lod);
  return {std::move(selected.rows), std::move(selected.lod)};
}

SequencePlan make_keep_plan(const LoD& lod, const std::vector<bool>& keep) {
  lod.validate(static_cast<std::int64_t>(keep.size()));
  const int inner = sequence_level(lod, -1);
  const auto offsets = lod.offsets(inner);
  SequencePlan plan;
  Indices lengths;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::size_t before = plan.rows.size();
    for (std::int64_t row = offsets[i]; row < offsets[i + 1]; ++row)
      if (keep[static_cast<std::size_t>(row)]) plan.rows.push_back(row);
    lengths.push_back(static_cast<std::int64_t>(plan.rows.size() - before));
  }
  plan.lod = lod.levels(0, inner).append(lengths);
  return plan;
}

namespace {

/// outside(i) says what stands for a place outside the sequence: i rows behind it, the nearest being 0, or −i before it, the nearest being
/// −1.
template <class Outside>
SequencePlan window_plan(const LoD& lod, std::int64_t start, std::int64_t length, Outside outside) {
  if (length < 1) throw ArgumentError("sequence window: expected a length of at least 1, found " + text(length));
  checked_add(start, length);
  const auto offsets = lod.offsets(sequence_level(lod, -1));
  SequencePlan plan;
  plan.lod = lod;
  plan.rows.reserve(static_cast<std::size_t>(checked_mul(offsets.back(), length)));
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t begin = offsets[i];
    const std::int64_t end = offsets[i + 1];
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t k = 0; k < length; ++k) {
        // Compared as distances: start may be anything.
        const std::int64_t away = start + k;
        plan.rows.push_back(away < begin - row  ? outside(away + (row - begin))
                            : away >= end - row ? outside(away - (end - row))
                                                : row + away);
      }
  }
  return plan;
}

}  // namespace

SequencePlan make_window_plan(const LoD& lod, std::int64_t start, std::int64_t length) {
  return window_plan(lod, start, length, [](std::int64_t) { return std::int64_t{-1}; });
}

SequencePlan make_bordered_window_plan(const LoD& lod, std::int64_t start, std::int64_t length) {
  const std::int64_t first_behind = checked_add(lod.rows(), std::max<std::int64_t>(0, checked_mul(start, std::int64_t{-1})));
  return window_plan(lod, start, length, [=](std::int64_t i) { return first_behind + i; });
}

std::int64_t padded_room(const LoD& lod, std::int64_t length) {
  const Indices lengths = lod.lengths(sequence_level(lod, -1));
  const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  if (length < -1) throw ArgumentError("sequence_pad: expected a length of 0 or more, or -1 for the longest, found " + text(length));
  const std::int64_t wide = length == -1 ? longest : length;
  if (wide < longest)
    throw ArgumentError("sequence_pad: expected room for the longest sequence of " + text(longest) + " rows, found " + text(wide));
  return wide;
}

SequencePlan make_pad_plan(const LoD& lod, std::int64_t length) {
  const int inner = sequence_level(lod, -1);
  const auto offsets = lod.offsets(inner);
  const Indices lengths = lod.lengths(inner);
  const std::int64_t wide = padded_room(lod, length);
  SequencePlan plan;
  plan.rows.reserve(static_cast<std::size_t>(checked_mul(count(lengths), wide)));
  for (std::size_t i = 0; i < lengths.size(); ++i)
    for (std::int64_t t = 0; t < wide; ++t) plan.rows.push_back(t < lengths[i] ? offsets[i] + t : -1);
  plan.lod = lod.levels(0, inner);
  return plan;
}

SequencePlan make_unpad_plan(std::span<const std::int64_t> lengths, std::int64_t padded, const LoD& outer) {
  for (std::int64_t i = 0; i < count(lengths); ++i)
    if (at(lengths, i) < 0 || at(lengths, i) > padded)
      throw ArgumentError("sequence_unpad: expected a length from 0 to " + text(padded) + " for sequence " + text(i) + ", found " +
                          text(at(lengths, i)));
  SequencePlan plan;
  plan.lod = outer.append(lengths);
  for (std::int64_t i = 0; i < count(lengths); ++i)
    for (std::int64_t t = 0; t < at(lengths, i); ++t) plan.rows.push_back(i * padded + t);
  return plan;
}

JoinPlan make_concat_plan(std::span<const LoD> lods, int level) {
  if (lods.empty()) throw ArgumentError("sequence_concat: expected at least one input, found none");
  const LoD& first = lods[0];
  const int from = sequence_level(first, level);
  Weaver weaver;
  LoD::Level lengths = first.lengths(from);
  std::fill(lengths.begin(), lengths.end(), 0);
  for (const LoD& lod : lods) {
    if (lod.depth() != first.depth() || lod.levels(0, from) != first.levels(0, from) || lod.sequences(from) != first.sequences(from))
      throw LoDError("sequence_concat: expected equal levels above level " + text(from) + " and as many sequences there, found " +
                     first.brief() + " and " + lod.brief());
    weaver.add_input(lod.levels(from + 1, lod.depth()), lod.rows());
  }
  for (std::size_t i = 0; i < lengths.size(); ++i)
    for (std::size_t input = 0; input < lods.size(); ++input) {
      const auto offsets = lods[input].offsets(from);
      lengths[i] += offsets[i + 1] - offsets[i];
      for (std::int64_t item = offsets[i]; item < offsets[i + 1]; ++item) weaver.take(input, item);
    }
  return weaver.finish(first.levels(0, from).append(lengths));
}

std::pair<SequencePlan, SequencePlan> make_mask_split_plan(const LoD& lod, std::int64_t rows, int level, const std::vector<bool>& mask) {
  check_mask_level("split_by_mask", lod, rows, level);
  const std::int64_t units = units_at(lod, rows, level);
  if (std::cmp_not_equal(mask.size(), units))
    throw LoDError("split_by_mask: expected a mask of " + text(units) + (level == lod.depth() ? " rows" : " sequences at level ") +
                   (level == lod.depth() ? "" : text(level)) + ", found " + text(static_cast<std::int64_t>(mask.size())));
  const auto half = [&](bool wanted) {
    Indices chosen;
    for (std::size_t i = 0; i < mask.size(); ++i)
      if (mask[i] == wanted) chosen.push_back(static_cast<std::int64_t>(i));
    if (level == 0) {
      RowSelection selected = select_sequences(chosen, rows, lod);
      return SequencePlan{std::move(selected.rows), std::move(selected.lod)};
    }
    Indices lengths;
    const auto above = lod.offsets(level - 1);
    for (std::size_t i = 0; i + 1 < above.size(); ++i)
      lengths.push_back(std::count(mask.begin() + above[i], mask.begin() + above[i + 1], wanted));
    return choose_items(lod, level - 1, chosen, lengths);
  };
  return {half(true), half(false)};
}

JoinPlan make_mask_merge_plan(const LoD& unset, std::int64_t unset_rows, const LoD& set, std::int64_t set_rows, int level,
                              const std::vector<bool>& mask) {
  check_mask_level("merge_by_mask", unset, unset_rows, level);
  check_mask_level("merge_by_mask", set, set_rows, level);
  const std::int64_t marked = std::count(mask.begin(), mask.end(), true);
  const std::int64_t others = static_cast<std::int64_t>(mask.size()) - marked;
  const LoD above = set.levels(0, std::max(0, level - 1));
  if (set.depth() != unset.depth() || above != unset.levels(0, std::max(0, level - 1)) || units_at(set, set_rows, level) != marked ||
      units_at(unset, unset_rows, level) != others)
    throw LoDError("merge_by_mask: expected equal outer levels, and at level " + text(level) + " " + text(marked) + " sequences set and " +
                   text(others) + " not, as the mask says, found " + set.to_string() + " over " + text(set_rows) + " rows and " +
                   unset.to_string() + " over " + text(unset_rows));
  Weaver weaver;
  weaver.add_input(unset.levels(level, unset.depth()), unset_rows);
  weaver.add_input(set.levels(level, set.depth()), set_rows);
  std::int64_t next[2] = {0, 0};
  for (const bool from_set : mask) weaver.take(from_set ? 1 : 0, next[from_set ? 1 : 0]++);
  if (level == 0) return weaver.finish(LoD());
  // Each sequence above must have lost to `set` as many as the mask sets within it.
  const Indices set_lengths = units_above(set, level);
  const Indices unset_lengths = units_above(unset, level);
  if (set_lengths.size() != unset_lengths.size())
    throw LoDError("merge_by_mask: expected as many sequences at level " + text(level - 1) + ", found " + set.brief() + " and " +
                   unset.brief());
  Indices lengths;
  auto from = mask.begin();
  for (std::size_t i = 0; i < set_lengths.size(); ++i) {
    lengths.push_back(set_lengths[i] + unset_lengths[i]);
    const auto to = from + lengths.back();
    if (std::count(from, to, true) != set_lengths[i])
      throw LoDError("merge_by_mask: expected " + text(std::count(from, to, true)) + " sequences set in sequence " +
                     text(static_cast<std::int64_t>(i)) + " of level " + text(level - 1) + ", as the mask says, found " +
                     text(set_lengths[i]));
    from = to;
  }
  return weaver.finish(above.append(lengths));
}

}  // namespace millrace
