// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/batcher.h>

#include <algorithm>
#include <cstring>

#include <millrace/streaming/live/row_buffer.h>

namespace millrace {
namespace {

template <class T>
void grow_for_one_more(std::vector<T>& list, std::size_t wanted) {
  if (list.capacity() < wanted) list.reserve(std::max(wanted, 2 * list.capacity()));
}

}  // namespace

Batcher::Batcher(std::shared_ptr<const Recurrence> recurrence, std::size_t max_rows)
    : recurrence_(std::move(recurrence)), max_rows_(std::max<std::size_t>(max_rows, 1)), row_(recurrence_->outputs.size()) {}

LiveId Batcher::open(std::vector<RowSource*> sources, Sink& sink, std::vector<Tensor> given, LiveOrigin from) {
  if (const std::size_t wanted = first_source(recurrence_->boundaries.size()); sources.size() != wanted)
    throw ArgumentError("batcher: expected " + std::to_string(wanted) + " sources, found " + std::to_string(sources.size()));
  // Memory that runs out here leaves nothing behind, and none is needed when a slot comes back.
  grow_for_one_more(free_, next_slot_ + 1);
  grow_for_one_more(starts_, starts_.size() + 1);
  OneOrMany own(std::move(sources));
  const LiveId id = next_id_++;
  Sequence& sequence = sequences_[id];
  sequence.id = id;
  sequence.sources = std::move(own);
  sequence.sink = &sink;
  if (free_.empty()) {
    sequence.slot = next_slot_++;
  } else {
    sequence.slot = free_.back();
    free_.pop_back();
  }
  sequence.seq = from.seq;
  starts_.push_back({sequence.slot, std::move(given), std::move(from.states)});
  try {
    review(sequence);
  } catch (...) {
    close(id);
    throw;
  }
  return id;
}

/// Where the sources of a boundary begin.
std::size_t Batcher::first_source(std::size_t boundary) const {
  std::size_t first = recurrence_->inputs.size();
  for (std::size_t i = 0; i < boundary; ++i) first += recurrence_->boundaries[i].inputs.size();
  return first;
}

/// Steps for which all rows are there.
std::size_t Batcher::waiting_rows(const Sequence& sequence) const {
  std::size_t rows = std::numeric_limits<std::size_t>::max();
  const auto end = sequence.sources.begin() + recurrence_->inputs.size();
  for (auto source = sequence.sources.begin(); source != end; ++source) rows = std::min(rows, (*source)->rows());
  return rows;
}

bool Batcher::can_step(const Sequence& sequence) const {
  return !sequence.out && !sequence.over && sequence.may_step && (sequence.crossing != no_crossing || waiting_rows(sequence) > 0);
}

bool Batcher::will_step(LiveId id) const {
  const auto found = sequences_.find(id);
  return found != sequences_.end() && (found->second.out || can_step(found->second));
}

bool Batcher::settled(LiveId id) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return true;
  const Sequence& sequence = found->second;
  const auto end = sequence.sources.begin() + recurrence_->inputs.size();
  return !sequence.out && sequence.crossing == no_crossing &&
         std::any_of(sequence.sources.begin(), end, [](const RowSource* source) { return source->rows() == 0; });
}

void Batcher::cross(LiveId id, std::size_t boundary) {
  Sequence& sequence = sequences_.at(id);
  const std::size_t first = first_source(boundary);
  for (std::size_t i = 0; i < recurrence_->boundaries.at(boundary).inputs.size(); ++i)
    if (sequence.sources[first + i]->rows() == 0)
      throw ArgumentError("batcher: expected a row of '" + recurrence_->boundaries[boundary].inputs[i].name + "', found none");
  if (!settled(id) || sequence.over) throw ArgumentError("batcher: expected a sequence that has settled");
  review_crossing(sequence, static_cast<std::int32_t>(boundary));
}

/// Where there is no memory, nothing has changed.
void Batcher::review_crossing(Sequence& sequence, std::int32_t crossing) {
  sequence.crossing = crossing;
  try {
    review(sequence);
  } catch (...) {
    sequence.crossing = no_crossing;
    throw;
  }
}

void Batcher::save(LiveId id) {
  Sequence& sequence = sequences_.at(id);
  if (!settled(id) || sequence.over) throw ArgumentError("batcher: expected a sequence that has settled");
  review_crossing(sequence, saving);
}

void Batcher::restart(LiveId id, std::vector<RowSource*> sources, std::vector<Tensor> given) {
  Sequence& sequence = sequences_.at(id);
  if (sequence.out) throw ArgumentError("batcher: expected a sequence that has settled or drained");
  grow_for_one_more(starts_, starts_.size() + 1);
  sequence.sources = OneOrMany(std::move(sources));
  sequence.seq = 0;
  sequence.over = false;
  std::erase_if(starts_, [&](const Tick::Start& start) { return start.slot == sequence.slot; });
  starts_.push_back({sequence.slot, std::move(given)});
  review(sequence);
}

void Batcher::wait_in(Sequence& sequence, Sequence::Queue queue) {
  using Queue = Sequence::Queue;
  if (sequence.queue == queue) return;
  if (sequence.queue != Queue::none) (sequence.queue == Queue::ahead ? ahead_ : prompt_).erase(sequence.id);
  sequence.queue = Queue::none;
  if (queue != Queue::none) (queue == Queue::ahead ? ahead_ : prompt_).insert(sequence.id);
  sequence.queue = queue;
}

/// Puts the sequence among those ready, or takes it out; says so when its last step is done.
void Batcher::review(Sequence& sequence) {
  using Queue = Sequence::Queue;
  if (can_step(sequence))
    return wait_in(sequence, sequence.crossing == no_crossing && waiting_rows(sequence) > few_rows ? Queue::ahead : Queue::prompt);
  wait_in(sequence, Queue::none);
  if (sequence.out || sequence.over) return;
  const auto end = sequence.sources.begin() + recurrence_->inputs.size();
  const bool done =
      sequence.crossing == no_crossing &&
      std::all_of(sequence.sources.begin(), sequence.sources.end(), [](const RowSource* source) { return source->ended(); }) &&
      std::any_of(sequence.sources.begin(), end, [](const RowSource* source) { return source->rows() == 0; });
  if (!done) return;
  sequence.over = true;
  sequence.sink->drained();
}

void Batcher::changed(LiveId id) {
  const auto found = sequences_.find(id);
  if (found != sequences_.end()) review(found->second);
}

void Batcher::allow(LiveId id, bool may_step) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  found->second.may_step = may_step;
  review(found->second);
}

void Batcher::release(Slot slot) {
  // A start that no tick has taken yet must not reach the slot's next owner after its own.
  std::erase_if(starts_, [slot](const Tick::Start& start) { return start.slot == slot; });
  free_.push_back(slot);
}

void Batcher::close(LiveId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  wait_in(found->second, Sequence::Queue::none);
  if (found->second.out) {
    if (found->second.sink == nullptr) return;  // it was closed before
    ++closed_out_;
    found->second.sink = nullptr;
    found->second.over = true;
    return;
  }
  release(found->second.slot);
  sequences_.erase(found);
}

void Batcher::lose(const std::exception_ptr& error) {
  LiveId last = 0;
  for (auto at = sequences_.begin(); at != sequences_.end(); at = sequences_.upper_bound(last)) {  // a sink may close others
    last = at->first;
    if (at->second.over) continue;
    wait_in(at->second, Sequence::Queue::none);
    fail(at->second, at->second.seq, error);
  }
}

bool Batcher::ready() const noexcept { return !tick_out_ && waiting(); }

std::size_t Batcher::live() const noexcept { return sequences_.size() - closed_out_; }

void Batcher::take_row(Tick& tick, Sequence& sequence, std::size_t row) const {
  for (std::size_t i = 0; i < tick.inputs.size(); ++i) {
    const std::span<const std::byte> bytes = sequence.sources[i]->row(0);
    std::memcpy(static_cast<std::byte*>(tick.inputs[i].raw_mutable()) + row * bytes.size(), bytes.data(), bytes.size());
    sequence.sources[i]->pop(1);
  }
}

/// The crossing of a sequence, with room for its rows. `take_crossing` brings them.
Tick::Crossing Batcher::make_crossing(const Sequence& sequence) const {
  Tick::Crossing made{sequence.slot, static_cast<std::size_t>(sequence.crossing), {}};
  for (const Recurrence::Input& input : recurrence_->boundaries[made.boundary].inputs)
    made.inputs.emplace_back(input.dtype, input.dims.inserted(0, 1));
  return made;
}

void Batcher::take_crossing(Tick::Crossing& crossing, Sequence& sequence) const {
  std::size_t source = first_source(crossing.boundary);
  for (Tensor& row : crossing.inputs) {
    const std::span<const std::byte> bytes = sequence.sources[source]->row(0);
    std::memcpy(row.raw_mutable(), bytes.data(), bytes.size());
    row.storage()->mark_written();
    sequence.sources[source++]->pop(1);
  }
}

Tick Batcher::take() {
  Tick tick;
  take(tick);
  return tick;
}

/// Chooses at most `most` sequences of a queue, from where the last tick ended.
void Batcher::choose_from(const Ready& ready, LiveId& cursor, std::size_t most) {
  most = std::min(most, ready.size());
  auto at = ready.lower_bound(cursor);
  for (std::size_t count = 0; count < most; ++count, ++at) {
    if (at == ready.end()) at = ready.begin();
    chosen_.push_back(*at);
    cursor = *at + 1;
  }
}

/// The sequences of the next tick, in the order of opening. Of a tick that is too small for all, each queue has a half.
void Batcher::choose() {
  chosen_.clear();
  const bool alone = ahead_.size() == sequences_.size();
  std::size_t ahead = std::min(ahead_.size(), alone ? max_rows_ : most_ahead_);
  if (const std::size_t both = prompt_.size() + ahead; both > max_rows_) {
    half_up_ = !half_up_;
    const std::size_t half = (max_rows_ + (half_up_ ? 1 : 0)) / 2;
    ahead = std::min(ahead, std::max(half, max_rows_ - std::min(max_rows_, prompt_.size())));
  }
  choose_from(ahead_, ahead_cursor_, ahead);
  choose_from(prompt_, prompt_cursor_, max_rows_ - ahead);
  std::sort(chosen_.begin(), chosen_.end());
}

void Batcher::take(Tick& tick) {
  if (!ready()) throw ArgumentError("batcher: expected something ready and no tick out");
  choose();
  for (auto* list : {&out_, &crossing_out_, &saving_out_}) list->clear();  // of a tick that found no memory
  for (const LiveId id : chosen_) {
    const std::int32_t crossing = sequences_.at(id).crossing;
    (crossing == no_crossing ? out_ : crossing == saving ? saving_out_ : crossing_out_).push_back(id);
  }
  tick.slots.clear();
  tick.crossings.clear();
  tick.saves.clear();
  // Memory is asked for before anything of the sequences changes.
  tick.slots.reserve(out_.size());
  tick.crossings.reserve(crossing_out_.size());
  for (const LiveId id : crossing_out_) tick.crossings.push_back(make_crossing(sequences_.at(id)));
  tick.saves.reserve(saving_out_.size());
  tick.inputs.resize(recurrence_->inputs.size());
  for (std::size_t i = 0; i < tick.inputs.size(); ++i)
    fit_rows(tick.inputs[i], recurrence_->inputs[i].dtype, recurrence_->inputs[i].dims, static_cast<std::int64_t>(out_.size()));
  tick.starts.clear();
  tick.starts.swap(starts_);
  auto crossing = tick.crossings.begin();
  for (const LiveId id : chosen_) {
    Sequence& sequence = sequences_.at(id);
    wait_in(sequence, Sequence::Queue::none);
    sequence.out = true;
    if (sequence.crossing == saving) {
      tick.saves.push_back(sequence.slot);
      continue;
    }
    if (sequence.crossing != no_crossing) {
      take_crossing(*crossing++, sequence);
      continue;
    }
    take_row(tick, sequence, tick.slots.size());
    tick.slots.push_back(sequence.slot);
  }
  tick_out_ = true;
  ++stats_.ticks;
  stats_.rows += out_.size();
  stats_.largest = std::max<std::uint64_t>(stats_.largest, out_.size());
}

/// A sequence whose tick is over; null when it was closed meanwhile.
Batcher::Sequence* Batcher::came_back(LiveId id) {
  const auto found = sequences_.find(id);
  Sequence& sequence = found->second;
  sequence.out = false;
  if (sequence.sink != nullptr) return &sequence;
  --closed_out_;
  release(sequence.slot);
  sequences_.erase(found);
  return nullptr;
}

template <class Tell>
void Batcher::tell(LiveId id, Tell tell_sink) {
  try {
    tell_sink();
    changed(id);
  } catch (...) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return;  // its sink closed it
    wait_in(found->second, Sequence::Queue::none);
    fail(found->second, found->second.seq, std::current_exception());
  }
}

void Batcher::finish(const TickResult& result) {
  tick_out_ = false;
  if (result.error != nullptr) {
    for (const auto* list : {&out_, &crossing_out_, &saving_out_})
      for (const LiveId id : *list)
        if (Sequence* const sequence = came_back(id)) fail(*sequence, sequence->seq, result.error);
  } else {
    finish_rows(result);
    for (std::size_t n = 0; n < crossing_out_.size(); ++n) finish_crossing(result.crossed.at(n), crossing_out_[n]);
    for (std::size_t n = 0; n < saving_out_.size(); ++n) finish_save(result.saved.at(n), saving_out_[n]);
  }
  out_.clear();
  crossing_out_.clear();
  saving_out_.clear();
}

void Batcher::finish_rows(const TickResult& result) {
  auto failure = result.failures.begin();
  for (std::size_t row = 0; row < out_.size(); ++row) {
    const bool good = failure == result.failures.end() || failure->row != row;
    const std::exception_ptr error = good ? nullptr : (failure++)->error;
    Sequence* sequence = came_back(out_[row]);
    if (sequence == nullptr) continue;
    const std::uint64_t seq = sequence->seq++;
    if (!good) {
      fail(*sequence, seq, error);
      continue;
    }
    for (std::size_t i = 0; i < row_.size(); ++i) {
      const std::size_t bytes = result.outputs[i].bytes() / out_.size();
      row_[i] = {static_cast<const std::byte*>(result.outputs[i].raw()) + row * bytes, bytes};
    }
    tell(out_[row], [&] { sequence->sink->step(seq, row_); });
  }
}

void Batcher::fail(Sequence& sequence, std::uint64_t seq, const std::exception_ptr& error) {
  sequence.over = true;
  try {
    sequence.sink->failed(seq, error);
  } catch (...) {  // no memory is left to tell it; the others get what they wait for all the same
  }
}

void Batcher::finish_crossing(const TickResult::Crossed& crossed, LiveId id) {
  Sequence* sequence = came_back(id);
  if (sequence == nullptr) return;
  const auto boundary = static_cast<std::size_t>(std::exchange(sequence->crossing, no_crossing));
  if (crossed.error != nullptr) return fail(*sequence, sequence->seq, crossed.error);
  tell(id, [&] {
    std::vector<std::span<const std::byte>> outputs;
    for (const Tensor& row : crossed.outputs) outputs.push_back({static_cast<const std::byte*>(row.raw()), row.bytes()});
    sequence->sink->crossed(boundary, outputs);
  });
}

void Batcher::finish_save(const TickResult::Saved& saved, LiveId id) {
  Sequence* sequence = came_back(id);
  if (sequence == nullptr) return;
  sequence->crossing = no_crossing;
  if (saved.error != nullptr) return fail(*sequence, sequence->seq, saved.error);
  tell(id, [&] { sequence->sink->saved(saved.states); });
}

}  // namespace millrace
