// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/ragged.h>

#include <algorithm>
#include <numeric>

namespace millrace {
namespace {

using Indices = std::vector<std::int64_t>;

/// Whether `indices` is 0, 1, 2, …
bool counts_up(std::span<const std::int64_t> indices) {
  for (std::size_t i = 0; i < indices.size(); ++i)
    if (std::cmp_not_equal(indices[i], i)) return false;
  return true;
}

/// Appends the items of `level` that step `step` takes, given the ranks alive there: item number `step` of each sequence, counted from its end
/// when the order is reversed.
void append_items(const SequenceOrder& order, const Indices& ranks, std::int64_t step, Indices& items) {
  const auto offsets = order.lod().offsets(order.level());
  const auto permutation = order.permutation();
  const bool reversed = order.reversed();
  const std::size_t before = items.size();
  items.resize(before + ranks.size());
  std::int64_t* to = items.data() + before;
  for (const std::int64_t rank : ranks) {
    const auto sequence = static_cast<std::size_t>(permutation[static_cast<std::size_t>(rank)]);
    *to++ = reversed ? offsets[sequence + 1] - 1 - step : offsets[sequence] + step;
  }
}

/// The ranks of `ranks` whose sequences are longer than `step`, in place.
void drop_ended(const SequenceOrder& order, std::int64_t step, Indices& ranks) {
  if (order.sorted()) return ranks.resize(static_cast<std::size_t>(order.live(step)));
  const auto lengths = order.lengths();
  std::erase_if(ranks, [&](std::int64_t rank) { return lengths[static_cast<std::size_t>(rank)] <= step; });
}

std::string step_text(std::int64_t step) { return "step " + std::to_string(step); }

/// The depth that all slots have; LoDError when they differ, or when a slot does not have an item for each live sequence.
int check_steps(const SequenceOrder& order, std::span<const std::int64_t> step_rows, std::span<const LoD> step_lods) {
  if (std::cmp_not_equal(step_rows.size(), order.steps()))
    throw LoDError("pack: expected " + std::to_string(order.steps()) + " steps for the " + order.to_string() + ", found " +
                   std::to_string(step_rows.size()));
  if (!step_lods.empty() && step_lods.size() != step_rows.size())
    throw LoDError("pack: expected a LoD for each of " + std::to_string(step_rows.size()) + " steps, found " +
                   std::to_string(step_lods.size()));
  int depth = step_rows.empty() ? order.depth_below() : step_lods.empty() ? 0 : step_lods.front().depth();
  for (std::size_t t = 0; t < step_rows.size(); ++t) {
    const auto step = static_cast<std::int64_t>(t);
    const LoD lod = step_lods.empty() ? LoD() : step_lods[t];
    if (lod.depth() != depth)
      throw LoDError("pack: " + step_text(step) + " has the LoD " + lod.brief() + ", " + step_text(0) + " has " +
                     step_lods.front().brief() + ": expected as many levels");
    lod.validate(step_rows[t]);
    const std::int64_t items = depth == 0 ? step_rows[t] : lod.sequences(0);
    if (items != order.live(step))
      throw LoDError("pack: expected " + std::to_string(order.live(step)) + (depth == 0 ? " rows" : " sequences") + " at " +
                     step_text(step) + ", one for each that lives, found " + std::to_string(items));
  }
  return depth;
}

/// The items of all slots, one slot after another, in the caller's order.
Indices slab_items(const SequenceOrder& order) {
  const auto permutation = order.permutation();
  const auto offsets = order.lod().offsets(order.level());
  Indices items(static_cast<std::size_t>(offsets.back()));
  Indices ranks(permutation.size());
  std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  Indices slab;
  slab.reserve(items.size());
  for (std::int64_t step = 0; step < order.steps(); ++step) {
    drop_ended(order, step, ranks);
    append_items(order, ranks, step, slab);
  }
  for (std::size_t at = 0; at < slab.size(); ++at) items[static_cast<std::size_t>(slab[at])] = static_cast<std::int64_t>(at);
  return items;
}

/// The LoDs of all slots as one, slot after slot.
LoD concatenated(std::span<const LoD> step_lods, int depth) {
  std::vector<LoD::Level> lengths(static_cast<std::size_t>(depth));
  for (const LoD& lod : step_lods)
    for (int level = 0; level < depth; ++level) {
      const LoD::Level more = lod.lengths(level);
      LoD::Level& all = lengths[static_cast<std::size_t>(level)];
      all.insert(all.end(), more.begin(), more.end());
    }
  return LoD::from_lengths(lengths);
}

void check_batch(const char* what, std::int64_t expected, std::int64_t rows, const LoD& lod) {
  lod.validate(rows);
  const std::int64_t found = lod.empty() ? rows : lod.sequences(0);
  if (found != expected)
    throw LoDError(std::string(what) + ": expected " + std::to_string(expected) + (lod.empty() ? " rows" : " sequences") + ", found " +
                   std::to_string(found));
}

}  // namespace

std::span<const std::int64_t> UnpackPlan::step_rows(std::int64_t step) const {
  if (step < 0 || step >= steps()) throw IndexError("unpack: " + step_text(step) + " of " + std::to_string(steps()));
  const auto begin = static_cast<std::size_t>(step_offsets[static_cast<std::size_t>(step)]);
  const auto end = static_cast<std::size_t>(step_offsets[static_cast<std::size_t>(step) + 1]);
  return std::span(sources).subspan(begin, end - begin);
}

UnpackPlan make_unpack_plan(const LoD& lod, int level, bool sort_by_length, std::int64_t rows, bool reverse) {
  lod.offsets(level);  // a missing level is the first thing to say
  lod.validate(rows);
  UnpackPlan plan;
  plan.order = SequenceOrder(lod, level, sort_by_length, reverse);
  plan.step_offsets.push_back(0);
  plan.sources.reserve(static_cast<std::size_t>(rows));
  const LoD below = lod.levels(level + 1, lod.depth());
  Indices items;
  Indices ranks(plan.order.permutation().size());
  std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  for (std::int64_t step = 0; step < plan.order.steps(); ++step) {
    drop_ended(plan.order, step, ranks);
    if (below.empty()) {  // an item is a row
      append_items(plan.order, ranks, step, plan.sources);
    } else {
      items.clear();
      append_items(plan.order, ranks, step, items);
      RowSelection chosen = select_sequences(items, rows, below);
      plan.sources.insert(plan.sources.end(), chosen.rows.begin(), chosen.rows.end());
      plan.step_lods.push_back(std::move(chosen.lod));
    }
    plan.step_offsets.push_back(static_cast<std::int64_t>(plan.sources.size()));
  }
  plan.step_lods.resize(static_cast<std::size_t>(plan.order.steps()));
  plan.identity = counts_up(plan.sources);
  return plan;
}

std::pair<std::int64_t, std::int64_t> PackPlan::at(std::int64_t row) const {
  if (row < 0 || std::cmp_greater_equal(row, sources.size()))
    throw IndexError("pack: row " + std::to_string(row) + " of " + std::to_string(sources.size()));
  const std::int64_t source = sources[static_cast<std::size_t>(row)];
  const auto after = std::upper_bound(step_offsets.begin(), step_offsets.end(), source);
  return {after - step_offsets.begin() - 1, source - after[-1]};
}

PackPlan make_pack_plan(const SequenceOrder& order, std::span<const std::int64_t> step_rows, std::span<const LoD> step_lods) {
  const int depth = check_steps(order, step_rows, step_lods);
  PackPlan plan;
  plan.step_offsets.push_back(0);
  for (const std::int64_t rows : step_rows) plan.step_offsets.push_back(plan.step_offsets.back() + rows);
  const Indices items = slab_items(order);
  RowSelection chosen = select_sequences(items, plan.step_offsets.back(), concatenated(step_lods, depth));
  plan.sources = std::move(chosen.rows);
  plan.lod = order.lod().append(chosen.lod);
  plan.identity = chosen.prefix;
  return plan;
}

PackPlan make_pack_plan(const SequenceOrder& order) {
  Indices rows;
  for (std::int64_t step = 0; step < order.steps(); ++step) rows.push_back(order.live(step));
  return make_pack_plan(order, rows);
}

std::vector<std::int64_t> last_sources(const SequenceOrder& order) {
  const auto permutation = order.permutation(), lengths = order.lengths();
  Indices sources(permutation.size(), -1);
  std::int64_t next = 0;
  if (order.sorted()) {  // rank k is row k of each step where it lives; the shortest sequences end first
    std::size_t rank = permutation.size();
    for (std::int64_t step = 0; step < order.steps(); ++step) {
      for (; rank > 0 && lengths[rank - 1] <= step + 1; --rank)
        if (lengths[rank - 1] == step + 1)
          sources[static_cast<std::size_t>(permutation[rank - 1])] = next + static_cast<std::int64_t>(rank - 1);
      next += order.live(step);
    }
    return sources;
  }
  Indices ranks(sources.size());
  std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  for (std::int64_t step = 0; step < order.steps(); ++step) {
    drop_ended(order, step, ranks);
    for (const std::int64_t rank : ranks) sources[static_cast<std::size_t>(permutation[static_cast<std::size_t>(rank)])] = next++;
  }
  return sources;
}

RowSelection select_sequences(std::span<const std::int64_t> chosen, std::int64_t rows, const LoD& lod) {
  lod.validate(rows);
  RowSelection selection;
  if (lod.empty()) {
    for (const std::int64_t row : chosen)
      if (row < 0 || row >= rows) throw IndexError("select: row " + std::to_string(row) + " of " + std::to_string(rows));
    selection.rows.assign(chosen.begin(), chosen.end());
  } else {
    selection.lod = lod.select(chosen);
    if (selection.lod.rows() > std::int64_t{1} << 36)
      throw OutOfMemoryError("select: expected at most 2^36 rows, found " + std::to_string(selection.lod.rows()));
    selection.rows.reserve(static_cast<std::size_t>(selection.lod.rows()));
    for (const std::int64_t sequence : chosen) {
      const auto [begin, end] = lod.row_range(0, sequence, sequence + 1);
      for (std::int64_t row = begin; row < end; ++row) selection.rows.push_back(row);
    }
  }
  selection.prefix = counts_up(selection.rows);
  return selection;
}

RowSelection shrink_rows(const SequenceOrder& order, std::int64_t from, std::int64_t to, std::int64_t rows, const LoD& lod) {
  if (to < from) throw ArgumentError("shrink: expected a later step than " + std::to_string(from) + ", found " + std::to_string(to));
  const std::string what = "shrink: the batch of " + step_text(from);
  check_batch(what.c_str(), order.live(from), rows, lod);
  const auto lengths = order.lengths();
  Indices chosen;
  std::int64_t position = 0;
  for (const std::int64_t rank : order.live_ranks(from)) {
    if (lengths[static_cast<std::size_t>(rank)] > to) chosen.push_back(position);
    ++position;
  }
  return select_sequences(chosen, rows, lod);
}

RowSelection shrink_rows(const SequenceOrder& order, std::int64_t from, std::int64_t to) {
  return shrink_rows(order, from, to, order.live(from));
}

RowSelection reorder_rows(const SequenceOrder& order, std::int64_t rows, const LoD& lod) {
  check_batch("re-order: a boot or static input has one for each sequence", order.sequences(), rows, lod);
  return select_sequences(order.permutation(), rows, lod);
}

RowSelection reorder_rows(const SequenceOrder& order) { return reorder_rows(order, order.sequences()); }

}  // namespace millrace
