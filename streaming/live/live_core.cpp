// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_core.h>

#include <algorithm>

#include <fmt/format.h>

#include <millrace/streaming/protocol/row_assembler.h>

namespace millrace::detail {

// ---- Signals ----

void LiveSignal::raise(SignalWait*& woken) noexcept {
  ++version_;
  while (first_ != nullptr) {
    SignalWait* const one = std::exchange(first_, first_->next_);
    one->next_ = woken;
    woken = one;
  }
}

Wait::Armed LiveSignal::SignalWait::arm() noexcept {
  const std::lock_guard lock(mutex_);
  if (signal_.version_ != seen_) return Armed::ready;
  next_ = signal_.first_;
  signal_.first_ = this;
  return Armed::waiting;
}

bool LiveSignal::SignalWait::disarm() noexcept {
  const std::lock_guard lock(mutex_);
  for (SignalWait** at = &signal_.first_; *at != nullptr; at = &(*at)->next_) {
    if (*at != this) continue;
    *at = next_;
    return true;
  }
  return false;
}

// ---- The core ----

/// One tick on the worker.
class LiveCore::Job final : public Runnable {
 public:
  Job(LiveCore& core, Tick tick) : core_(core), tick_(std::move(tick)) {}
  void execute() noexcept override {
    TickResult result;
    try {
      result = core_.slab_.run(tick_, core_.runtime.tracer());
    } catch (...) {
      // Not a step's error (those are in the result) but the tick's own, such as memory that ran out: it is every row's.
      result = TickResult::failed(tick_, std::current_exception());
    }
    {
      const Locked lock(core_);
      core_.batcher.finish(result);
      if (result.lost) core_.batcher.lose(result.lost);
      core_.came_back_.notify_all();
    }
    delete this;
  }

 private:
  LiveCore& core_;
  Tick tick_;
};

LiveCore::LiveCore(Runtime& on, const Program& program, LiveOptions how)
    : runtime(on),
      options(std::move(how)),
      recurrence(std::make_shared<const Recurrence>(make_recurrence(program, options.recurrence))),
      batcher(recurrence, options.max_rows),
      slab_(recurrence, runtime.device(options.place), options.backend) {}

std::size_t LiveCore::output_count() const noexcept {
  std::size_t count = recurrence->outputs.size();
  for (const Recurrence::Boundary& boundary : recurrence->boundaries) count += boundary.outputs.size();
  return count;
}

const StateSeal& LiveCore::seal() {
  std::call_once(seal_made_,
                 [this] { seal_ = std::make_unique<StateSeal>(recurrence, options.state_key ? *options.state_key : StateKey::random()); });
  return *seal_;
}

void LiveCore::pump() {
  if (!shut_ && batcher.ready()) worker_->post(*new Job(*this, batcher.take()));
}

LiveCore::Locked::~Locked() {
  core_.pump();
  LiveSignal::SignalWait* waits = std::exchange(core_.woken, nullptr);
  lock_.unlock();
  // A wait may be gone once it is woken.
  while (waits != nullptr) std::exchange(waits, waits->next_)->wake();
}

void LiveCore::shut_down() noexcept {
  {
    const Locked lock(*this);
    shut_ = true;
    const auto all = sequences;
    for (const auto& [id, sequence] : all)
      if (!sequence->over) sequence->end_with(std::make_exception_ptr(CancelledError(sequence->label() + ": its model is gone")));
    sequences.clear();
    ready.clear();
    changed.raise(woken);
  }
  std::unique_lock lock(mutex);
  came_back_.wait(lock, [this] { return !batcher.tick_out(); });
  lock.unlock();
  worker_.reset();
}

// ---- A sequence ----

LiveSequence::LiveSequence(std::shared_ptr<LiveCore> of, std::string called, std::vector<Tensor> given)
    : core(std::move(of)), name(std::move(called)), outputs(core->output_count()), given_(std::move(given)) {
  if (const int levels = core->recurrence->levels; levels > 1) closed.assign(static_cast<std::size_t>(levels), 0);
}

LiveSequence::LiveSequence(std::shared_ptr<LiveCore> of, std::string called, SavedState from)
    : LiveSequence(std::move(of), std::move(called), std::move(from.given)) {
  answered = from.steps;
  answered_before = from.steps_before;
  open = from.open;
  if (from.closed.size() == closed.size()) closed = from.closed;
  from_ = std::move(from);
}

/// One that nobody has a handle of any more.
LiveSequence::~LiveSequence() {
  if (over || id == 0) return;
  const LiveCore::Locked lock(*core);
  over = true;
  core->batcher.close(id);
  core->sequences.erase(id);
  core->ready.erase(id);
}

std::string LiveSequence::label() const { return name.empty() ? fmt::format("session {}", id) : fmt::format("session {} '{}'", id, name); }

const Recurrence::Input& LiveSequence::input(std::size_t index, std::optional<int>& level) const {
  const Recurrence& recurrence = *core->recurrence;
  level.reset();
  if (index < recurrence.inputs.size()) return recurrence.inputs[index];
  index -= recurrence.inputs.size();
  for (const Recurrence::Boundary& boundary : recurrence.boundaries) {
    level = boundary.level;
    if (index < boundary.inputs.size()) return boundary.inputs[index];
    index -= boundary.inputs.size();
  }
  throw IndexError("live sequence: no such input");
}

void LiveSequence::make_sources() {
  std::vector<std::unique_ptr<RowSource>> fresh;
  const auto add = [&](const Recurrence::Input& port) {
    fresh.push_back(std::make_unique<RowAssembler>(port.name, port.dtype, port.row, core->options.queued_in));
  };
  for (const Recurrence::Input& port : core->recurrence->inputs) add(port);
  for (const Recurrence::Boundary& boundary : core->recurrence->boundaries)
    for (const Recurrence::Input& port : boundary.inputs) add(port);
  sources = std::move(fresh);
}

std::vector<RowSource*> LiveSequence::source_list() const {
  std::vector<RowSource*> all;
  for (const auto& source : sources) all.push_back(source.get());
  return all;
}

void LiveSequence::begin() {
  make_sources();
  LiveOrigin from;
  if (from_) {
    for (std::size_t i = 0; i < sources.size(); ++i) sources[i]->load(from_->pending.at(i));
    from = {std::move(from_->states), from_->steps};
    from_.reset();
  }
  id = core->batcher.open(source_list(), *this, given_, std::move(from));
  core->sequences.emplace(id, this);
}

void LiveSequence::check_goes_on() const {
  if (error != nullptr) rethrow_own(error);
  if (over) throw ArgumentError(label() + ": expected nothing after finish");
}

std::size_t LiveSequence::feed(std::size_t index, std::span<const std::byte> bytes) {
  RowSource& source = *sources[index];
  const std::size_t row = source.row_bytes(), held = source.held_bytes(), most = core->options.queued_in;
  std::size_t rows = most > held ? (most - held) / row : 0;
  if (source.rows() == 0) rows = std::max<std::size_t>(rows, 1);
  const std::size_t taken = source.feed(bytes.first(std::min(bytes.size(), rows * row)));
  if (taken > 0) core->batcher.changed(id);
  return taken;
}

void LiveSequence::say(Mark next) {
  check_goes_on();
  refused = nullptr;
  mark = next;
  advance();
}

/// Goes as far as what was said allows. An error is the speaker's, and changes nothing.
void LiveSequence::advance() {
  if (!mark || over || crossing_ || resetting_ || saving_) return;
  try {
    advance_once();
  } catch (...) {
    refused = std::current_exception();
    mark.reset();
  }
  notify();
}

void LiveSequence::advance_once() {
  const Mark now = *mark;
  if (!core->batcher.settled(id)) return;
  if (now.kind == Mark::Kind::save) {
    saving_ = true;
    return core->batcher.save(id);
  }
  const bool ends = now.kind == Mark::Kind::finish || now.kind == Mark::Kind::reset;
  check_whole(ends && open == 0);
  if (ends && open > 0) return cross(false, open);
  if (now.kind == Mark::Kind::open || now.kind == Mark::Kind::close) {
    cross(now.kind == Mark::Kind::open, now.level);
    mark.reset();
    return;
  }
  if (now.kind == Mark::Kind::reset)
    resetting_ = true;
  else
    mark.reset();
  if (!ends) return;
  for (const auto& source : sources) source->end();
  core->batcher.changed(id);
}

/// Sequences begin and end between steps: with as many rows of each input.
void LiveSequence::check_whole(bool at_end) const {
  for (std::size_t i = 0; i < (at_end ? sources.size() : core->recurrence->inputs.size()); ++i)
    if (std::optional<int> level; sources[i]->rows() > 0)
      throw ArgumentError(fmt::format("{}: expected as many rows of each input, found more of '{}'", label(), input(i, level).name));
}

void LiveSequence::cross(bool opens, int level) {
  const Recurrence& recurrence = *core->recurrence;
  const int expected = opens ? open + 1 : open;
  if (level != expected || level < 1 || level >= recurrence.levels)
    throw ArgumentError(fmt::format("{}: expected {} of level {} of {} levels, found level {}", label(), opens ? "open" : "close", expected,
                                    recurrence.levels, level));
  const Recurrence::Boundary& boundary = opens ? recurrence.opening(level) : recurrence.closing(level);
  core->batcher.cross(id, static_cast<std::size_t>(&boundary - recurrence.boundaries.data()));
  open += opens ? 1 : -1;
  crossing_ = true;
}

// ---- Results ----

void LiveSequence::keep(std::size_t first, std::span<const std::span<const std::byte>> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Rows& to = outputs[first + i];
    to.bytes.append(reinterpret_cast<const char*>(rows[i].data()), rows[i].size());
    ++to.count;
    waiting_bytes += rows[i].size();
  }
  ++results;
  if (waiting_bytes > core->options.queued_out) core->batcher.allow(id, false);
  notify();
}

std::vector<LiveSequence::Rows> LiveSequence::take() {
  std::vector<Rows> taken(outputs.size());
  taken.swap(outputs);
  results = 0;
  waiting_bytes = 0;
  core->ready.erase(id);
  if (over)
    core->ready.insert(id);
  else
    core->batcher.allow(id, true);
  return taken;
}

void LiveSequence::notify() {
  signal.raise(core->woken);
  if (!has_news() || core->sequences.count(id) == 0) return;
  core->ready.insert(id);
  core->changed.raise(core->woken);
}

void LiveSequence::step(std::uint64_t, std::span<const std::span<const std::byte>> rows) {
  ++answered;
  keep(0, rows);
  advance();
}

void LiveSequence::crossed(std::size_t boundary, std::span<const std::span<const std::byte>> rows) {
  crossing_ = false;
  const Recurrence& recurrence = *core->recurrence;
  std::size_t first = recurrence.outputs.size();
  for (std::size_t i = 0; i < boundary; ++i) first += recurrence.boundaries[i].outputs.size();
  if (const Recurrence::Boundary& at = recurrence.boundaries[boundary]; !at.opens) ++closed[static_cast<std::size_t>(at.level)];
  if (!rows.empty()) keep(first, rows);
  notify();
  advance();
}

void LiveSequence::failed(std::uint64_t seq, std::exception_ptr cause) {
  std::string why = "its work failed";
  try {
    std::rethrow_exception(cause);
  } catch (const std::exception& known) {
    why = known.what();
  } catch (...) {  // a foreign type keeps its place in `cause`
  }
  end_with(std::make_exception_ptr(LiveError(fmt::format("{}, step {}: {}", label(), seq, why), id, seq, cause)));
}

void LiveSequence::drained() {
  if (!resetting_) return end_with(nullptr);
  resetting_ = false;
  mark.reset();
  answered_before += std::exchange(answered, 0);
  closed.assign(closed.size(), 0);
  const auto old = std::move(sources);  // they go when the batcher has the new ones
  make_sources();
  core->batcher.restart(id, source_list(), given_);
  notify();
}

void LiveSequence::saved(std::vector<Tensor> states) {
  saving_ = false;
  mark.reset();
  SavedState made;
  made.steps = answered;
  made.steps_before = answered_before;
  made.open = open;
  made.closed = closed;
  made.given = given_;
  made.states = std::move(states);
  for (const auto& source : sources) source->save(made.pending.emplace_back());
  saved_ = std::move(made);
  notify();
}

SavedState LiveSequence::take_saved() {
  SavedState made = std::move(*saved_);
  saved_.reset();
  return made;
}

void LiveSequence::end_with(std::exception_ptr why) {
  if (over) return;
  over = true;
  error = std::move(why);
  core->batcher.close(id);
  notify();
}

}  // namespace millrace::detail
