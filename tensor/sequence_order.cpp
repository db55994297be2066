// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/sequence_order.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace millrace {

struct SequenceOrder::State {
  int level = 0;
  bool sorted = false;
  bool reversed = false;
  int depth_below = 0;
  LoD lod;
  std::vector<std::int64_t> permutation;
  std::vector<std::int64_t> lengths;     // by rank
  std::vector<std::int64_t> descending;  // the lengths, longest first: `live` searches here, so that no memory grows with the steps
  std::vector<std::int64_t> alive;       // by step, of few steps: arrays, loops and packs ask for each of them
};

namespace {

constexpr std::int64_t few_steps = 1024;

std::vector<std::int64_t> counts_of(const std::vector<std::int64_t>& descending) {
  std::vector<std::int64_t> alive;
  if (descending.empty() || descending.front() > few_steps) return alive;
  alive.reserve(static_cast<std::size_t>(descending.front()));
  std::size_t live = descending.size();
  for (std::int64_t step = 0; step < descending.front(); ++step) {
    while (descending[live - 1] <= step) --live;
    alive.push_back(static_cast<std::int64_t>(live));
  }
  return alive;
}

}  // namespace

SequenceOrder::SequenceOrder(const LoD& lod, int level, bool sort_by_length, bool reverse) {
  const LoD::Level lengths = lod.lengths(level);
  const auto state = std::make_shared<State>();
  state->level = level;
  state->sorted = sort_by_length;
  state->reversed = reverse;
  state->depth_below = lod.depth() - level - 1;
  state->lod = lod.levels(0, level + 1);
  state->permutation.resize(lengths.size());
  std::iota(state->permutation.begin(), state->permutation.end(), std::int64_t{0});
  const auto length_of = [&](std::int64_t sequence) { return lengths[static_cast<std::size_t>(sequence)]; };
  if (sort_by_length)
    std::sort(state->permutation.begin(), state->permutation.end(),
              [&](std::int64_t a, std::int64_t b) { return length_of(a) != length_of(b) ? length_of(a) > length_of(b) : a < b; });
  state->lengths.reserve(lengths.size());
  for (const std::int64_t sequence : state->permutation) state->lengths.push_back(length_of(sequence));
  state->descending = state->lengths;
  if (!sort_by_length) std::sort(state->descending.begin(), state->descending.end(), std::greater<>());
  state->alive = counts_of(state->descending);
  state_ = state;
}

int SequenceOrder::level() const noexcept { return state_->level; }
bool SequenceOrder::sorted() const noexcept { return state_->sorted; }
bool SequenceOrder::reversed() const noexcept { return state_->reversed; }
const LoD& SequenceOrder::lod() const noexcept { return state_->lod; }
int SequenceOrder::depth_below() const noexcept { return state_->depth_below; }
std::int64_t SequenceOrder::sequences() const noexcept { return static_cast<std::int64_t>(state_->permutation.size()); }
std::int64_t SequenceOrder::steps() const noexcept { return state_->descending.empty() ? 0 : state_->descending.front(); }
std::span<const std::int64_t> SequenceOrder::permutation() const noexcept { return state_->permutation; }
std::span<const std::int64_t> SequenceOrder::lengths() const noexcept { return state_->lengths; }

std::int64_t SequenceOrder::live(std::int64_t step) const {
  if (step < -1) throw IndexError("order: expected a step of at least -1, found " + std::to_string(step));
  if (step >= 0 && std::cmp_less(step, state_->alive.size())) return state_->alive[static_cast<std::size_t>(step)];
  const std::vector<std::int64_t>& all = state_->descending;
  return std::partition_point(all.begin(), all.end(), [&](std::int64_t length) { return length > step; }) - all.begin();
}

std::vector<std::int64_t> SequenceOrder::live_ranks(std::int64_t step) const {
  std::vector<std::int64_t> ranks;
  ranks.reserve(static_cast<std::size_t>(live(step)));
  for (std::size_t rank = 0; rank < state_->lengths.size(); ++rank)
    if (state_->lengths[rank] > step) ranks.push_back(static_cast<std::int64_t>(rank));
  return ranks;
}

std::vector<std::int64_t> SequenceOrder::inverse() const {
  std::vector<std::int64_t> ranks(state_->permutation.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    ranks[static_cast<std::size_t>(state_->permutation[rank])] = static_cast<std::int64_t>(rank);
  return ranks;
}

std::vector<SequenceOrder::Ranked> SequenceOrder::rank_table() const {
  std::vector<Ranked> table;
  for (std::size_t rank = 0; rank < state_->lengths.size(); ++rank) table.push_back({state_->permutation[rank], state_->lengths[rank]});
  return table;
}

Tensor SequenceOrder::indices_map() const {
  if (sequences() > std::numeric_limits<std::int32_t>::max())
    throw OverflowError("order: " + std::to_string(sequences()) + " sequences do not fit an i32 indices map");
  return Tensor::from(std::vector<std::int32_t>(state_->permutation.begin(), state_->permutation.end()), DDim{sequences()});
}

std::string SequenceOrder::to_string() const {
  std::string text = "order of " + lod().brief() + " at level " + std::to_string(level()) + (sorted() ? ", longest first" : ", as given") +
                     (reversed() ? ", from the end: [" : ": [");
  constexpr std::size_t most = 50;
  const std::size_t count = state_->permutation.size();
  for (std::size_t rank = 0; rank < std::min(count, most); ++rank)
    text += (rank > 0 ? "," : "") + std::to_string(state_->permutation[rank]);
  return text + (count > most ? "…" : "]");
}

bool operator==(const SequenceOrder& a, const SequenceOrder& b) noexcept {
  return a.state_ == b.state_ || (a.level() == b.level() && a.sorted() == b.sorted() && a.reversed() == b.reversed() &&
                                  a.depth_below() == b.depth_below() && a.lod() == b.lod());
}

}  // namespace millrace
