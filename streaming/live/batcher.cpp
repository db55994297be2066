// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/batcher.h>

#include <algorithm>
#include <cstring>

namespace millrace {

struct Batcher::Sequence {
  LiveId id = 0;
  Slot slot = 0;
  std::vector<RowSource*> sources;
  Sink* sink = nullptr;
  std::uint64_t seq = 0;
  bool may_step = true;
  bool out = false;
  bool over = false;  // failed or drained: nothing follows
};

Batcher::Batcher(std::shared_ptr<const Recurrence> recurrence, std::size_t max_rows)
    : recurrence_(std::move(recurrence)), max_rows_(std::max<std::size_t>(max_rows, 1)) {}
Batcher::~Batcher() = default;

LiveId Batcher::open(std::vector<RowSource*> sources, Sink& sink, std::vector<Tensor> given) {
  if (sources.size() != recurrence_->inputs.size())
    throw ArgumentError("batcher: expected " + std::to_string(recurrence_->inputs.size()) + " sources, found " +
                        std::to_string(sources.size()));
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_++;
  sequence->sources = std::move(sources);
  sequence->sink = &sink;
  if (free_.empty()) {
    sequence->slot = next_slot_++;
  } else {
    sequence->slot = free_.back();
    free_.pop_back();
  }
  starts_.push_back({sequence->slot, std::move(given)});
  const LiveId id = sequence->id;
  Sequence& kept = *sequences_.emplace(id, std::move(sequence)).first->second;
  review(kept);
  return id;
}

bool Batcher::can_step(const Sequence& sequence) const {
  return !sequence.out && !sequence.over && sequence.may_step &&
         std::all_of(sequence.sources.begin(), sequence.sources.end(), [](const RowSource* source) { return source->rows() > 0; });
}

/// Puts the sequence among those ready, or takes it out; says so when its last step is done.
void Batcher::review(Sequence& sequence) {
  if (can_step(sequence)) {
    ready_.insert(sequence.id);
    return;
  }
  ready_.erase(sequence.id);
  if (sequence.out || sequence.over) return;
  const bool done =
      std::all_of(sequence.sources.begin(), sequence.sources.end(), [](const RowSource* source) { return source->ended(); }) &&
      std::any_of(sequence.sources.begin(), sequence.sources.end(), [](const RowSource* source) { return source->rows() == 0; });
  if (!done) return;
  sequence.over = true;
  sequence.sink->drained();
}

void Batcher::changed(LiveId id) {
  const auto found = sequences_.find(id);
  if (found != sequences_.end()) review(*found->second);
}

void Batcher::allow(LiveId id, bool may_step) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  found->second->may_step = may_step;
  review(*found->second);
}

void Batcher::release(Slot slot) {
  // A start that no tick has taken yet must not reach the slot's next owner after its own.
  std::erase_if(starts_, [slot](const Tick::Start& start) { return start.slot == slot; });
  free_.push_back(slot);
}

void Batcher::close(LiveId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  ready_.erase(id);
  if (found->second->out) {
    closed_out_.insert(id);
    found->second->sink = nullptr;
    found->second->over = true;
    return;
  }
  release(found->second->slot);
  sequences_.erase(found);
}

bool Batcher::ready() const noexcept { return !tick_out_ && !ready_.empty(); }

std::size_t Batcher::live() const noexcept { return sequences_.size() - closed_out_.size(); }

Tick Batcher::take() {
  if (!ready()) throw ArgumentError("batcher: expected something ready and no tick out");
  Tick tick;
  tick.starts = std::exchange(starts_, {});
  out_.clear();
  for (auto at = ready_.lower_bound(cursor_); out_.size() < max_rows_ && out_.size() < ready_.size(); ++at) {
    if (at == ready_.end()) at = ready_.begin();
    out_.push_back(*at);
  }
  cursor_ = out_.back() + 1;
  std::sort(out_.begin(), out_.end());
  const auto rows = static_cast<std::int64_t>(out_.size());
  for (const Recurrence::Input& input : recurrence_->inputs) tick.inputs.emplace_back(input.dtype, input.dims.inserted(0, rows));
  for (Tensor& tensor : tick.inputs) tensor.storage()->mark_written();
  for (std::size_t row = 0; row < out_.size(); ++row) {
    Sequence& sequence = *sequences_.at(out_[row]);
    ready_.erase(sequence.id);
    sequence.out = true;
    tick.slots.push_back(sequence.slot);
    for (std::size_t i = 0; i < tick.inputs.size(); ++i) {
      const std::span<const std::byte> bytes = sequence.sources[i]->row(0);
      std::memcpy(static_cast<std::byte*>(tick.inputs[i].raw_mutable()) + row * bytes.size(), bytes.data(), bytes.size());
      sequence.sources[i]->pop(1);
    }
  }
  tick_out_ = true;
  ++stats_.ticks;
  stats_.rows += out_.size();
  stats_.largest = std::max<std::uint64_t>(stats_.largest, out_.size());
  return tick;
}

void Batcher::finish(const TickResult& result) {
  tick_out_ = false;
  const std::vector<LiveId> out = std::exchange(out_, {});
  std::vector<std::exception_ptr> errors(out.size());
  for (const TickResult::Failure& failure : result.failures) errors.at(failure.row) = failure.error;
  std::vector<std::span<const std::byte>> rows(result.outputs.size());
  for (std::size_t row = 0; row < out.size(); ++row) {
    const auto found = sequences_.find(out[row]);
    Sequence& sequence = *found->second;
    sequence.out = false;
    if (closed_out_.erase(sequence.id) > 0) {
      release(sequence.slot);
      sequences_.erase(found);
      continue;
    }
    const std::uint64_t seq = sequence.seq++;
    if (errors[row] != nullptr) {
      sequence.over = true;
      sequence.sink->failed(seq, errors[row]);
      continue;
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t bytes = result.outputs[i].bytes() / out.size();
      rows[i] = {static_cast<const std::byte*>(result.outputs[i].raw()) + row * bytes, bytes};
    }
    sequence.sink->step(seq, rows);
    changed(out[row]);
  }
}

}  // namespace millrace
