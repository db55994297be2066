// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_sequence.h>

#include <utility>

#include <fmt/format.h>

namespace millrace {

LiveSequence::~LiveSequence() { leave(); }

void LiveSequence::leave() noexcept {
  if (begun() && !over_) batcher_->close(id_);
  over_ = true;
}

// ---- Beginning ----

void LiveSequence::prepare(Sources sources, const SavedState& from) {
  sources_ = OneOrMany(std::move(sources));
  for (std::size_t i = 0; i < from.pending.size(); ++i) sources_[i]->load(from.pending[i]);
  answered_ = from.steps;
  open_ = from.open;
  if (from.given.empty() && from.closed.empty() && from.steps_before == 0) return;
  rare_ = std::make_unique<Rare>(Rare{from.given, from.closed, from.steps_before});
}

void LiveSequence::begin(Batcher& batcher, std::vector<Tensor> states) {
  batcher_ = &batcher;
  if (const auto levels = static_cast<std::size_t>(batcher.recurrence().levels); levels > 1) {
    if (!rare_) rare_ = std::make_unique<Rare>();
    rare_->closed.resize(levels);
  }
  id_ = batcher.open(source_list(), *this, rare_ ? rare_->given : std::vector<Tensor>(), {std::move(states), answered_});
}

std::vector<RowSource*> LiveSequence::source_list() const {
  std::vector<RowSource*> all;
  all.reserve(sources_.size());
  for (const auto& source : sources_) all.push_back(source.get());
  return all;
}

// ---- Verbs ----

/// Sequences begin and end between steps: with whole rows, as many of each input.
void LiveSequence::check_whole(const char* verb) const {
  const std::vector<Recurrence::Input>& inputs = batcher_->recurrence().inputs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (sources_[i]->held_bytes() == 0) continue;
    throw ArgumentError(
        sources_[i]->rows() > 0
            ? fmt::format("{}: expected as many rows of each input, found more of '{}'", verb, inputs[i].name)
            : fmt::format("{}: expected whole rows of '{}', found {} bytes of one", verb, inputs[i].name, sources_[i]->held_bytes()));
  }
}

/// An input that comes once for each inner sequence has a row when one opens.
void LiveSequence::check_arrived(const Recurrence::Boundary& boundary) const {
  std::size_t source = batcher_->recurrence().inputs.size();
  for (const Recurrence::Boundary* at = batcher_->recurrence().boundaries.data(); at != &boundary; ++at) source += at->inputs.size();
  for (const Recurrence::Input& input : boundary.inputs)
    if (sources_[source++]->rows() == 0)
      throw ArgumentError(fmt::format("expected a row of '{}' before open of level {}, found none", input.name, boundary.level));
}

void LiveSequence::cross(bool opens, int level) {
  const Recurrence& recurrence = batcher_->recurrence();
  const char* const verb = opens ? "open" : "close";
  if (opens) {
    if (recurrence.levels < 2)
      throw ArgumentError(fmt::format("open: expected a program with inner sequences, found level {} of a program with one level", level));
    if (open_ == recurrence.levels - 1)
      throw ArgumentError(fmt::format("open: expected close of level {} first, found level {}", open_, level));
    if (level != open_ + 1) throw ArgumentError(fmt::format("open: expected level {}, found {}", open_ + 1, level));
  } else {
    if (open_ == 0) throw ArgumentError(fmt::format("close: expected an inner sequence that is open, found level {} and none open", level));
    if (level != open_) throw ArgumentError(fmt::format("close: expected level {}, the innermost that is open, found {}", open_, level));
  }
  check_whole(verb);
  const Recurrence::Boundary& boundary = opens ? recurrence.opening(level) : recurrence.closing(level);
  check_arrived(boundary);
  batcher_->cross(id_, static_cast<std::size_t>(&boundary - recurrence.boundaries.data()));
  open_ += opens ? 1 : -1;
  verb_ = Verb::cross;
}

void LiveSequence::save() {
  batcher_->save(id_);
  verb_ = Verb::save;
}

void LiveSequence::end() {
  for (const auto& source : sources_) source->end();
  batcher_->changed(id_);
}

void LiveSequence::begin_anew() {
  for (const auto& source : sources_) source->end();
  verb_ = Verb::begin_anew;
  batcher_->changed(id_);
}

SavedState LiveSequence::state_with(std::vector<Tensor> states) const {
  SavedState state;
  state.steps = answered_;
  state.open = open_;
  if (rare_) {
    state.steps_before = rare_->answered_before;
    state.closed = rare_->closed;
    state.given = rare_->given;
  }
  state.states = std::move(states);
  for (const auto& source : sources_) source->save(state.pending.emplace_back());
  return state;
}

// ---- Events ----

void LiveSequence::step(std::uint64_t seq, Row row) {
  ++answered_;
  on_step(seq, row);
}

void LiveSequence::crossed(std::size_t boundary, Row row) {
  verb_ = Verb::none;
  const Recurrence::Boundary& at = batcher_->recurrence().boundaries[boundary];
  on_crossed(boundary, at.opens ? 0 : rare_->closed[static_cast<std::size_t>(at.level)]++, row);
}

void LiveSequence::failed(std::uint64_t seq, std::exception_ptr error) { on_failed(seq, std::move(error)); }

void LiveSequence::saved(std::vector<Tensor> states) {
  verb_ = Verb::none;
  on_saved(std::move(states));
}

void LiveSequence::drained() {
  const bool anew = verb_ == Verb::begin_anew;
  on_drained(anew);
  if (!anew || over_) return;
  verb_ = Verb::none;
  try {
    if (!rare_) rare_ = std::make_unique<Rare>();
    Sources fresh;
    for (const auto& source : sources_) fresh.push_back(source->anew());
    // The old sources go only when the batcher has the new ones.
    const auto old = std::exchange(sources_, OneOrMany(std::move(fresh)));
    batcher_->restart(id_, source_list(), rare_->given);
  } catch (const std::bad_alloc&) {
    // Its sources have ended, and no others are there: nothing could follow.
    return on_failed(answered_, std::current_exception());
  }
  rare_->answered_before += std::exchange(answered_, 0);
  rare_->closed.assign(rare_->closed.size(), 0);
  on_begun_anew();
}

}  // namespace millrace
