// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

#include <fmt/format.h>

#include <millrace/streaming/protocol/row_assembler.h>
#include <millrace/tensor/work_failure.h>

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

namespace {

LivePlace::Options place_of(Runtime& runtime, const LiveOptions& options) {
  LivePlace::Options own;
  own.device = runtime.device(options.place);
  own.backend = options.backend;
  own.max_rows = options.max_rows;
  own.tracer = runtime.tracer();
  return own;
}

}  // namespace

LiveCore::LiveCore(Runtime& on, std::shared_ptr<const Recurrence> recurrence, LiveOptions how)
    : LivePlace(recurrence, place_of(on, how)), executor(on.executor()), options(std::move(how)), recurrence_(std::move(recurrence)) {}

const StateSeal& LiveCore::seal() {
  std::call_once(seal_made_,
                 [this] { seal_ = std::make_unique<StateSeal>(recurrence_, options.state_key ? *options.state_key : StateKey::random()); });
  return *seal_;
}

bool LiveCore::holds_back() noexcept {
  if (gatherings > 0 && !prompt && 2 * gathered < sessions.size()) return true;
  gathered = 0;
  return false;
}

LiveCore::Locked::~Locked() {
  if (!core_.holds_back()) core_.pump();
  if (core_.idle()) core_.prompt = false;
  LiveSignal::SignalWait* waits = std::exchange(core_.woken, nullptr);
  std::list<std::shared_ptr<LiveReader>> readers;
  readers.swap(core_.told);
  lock_.unlock();
  for (const std::shared_ptr<LiveReader>& reader : readers) reader->on_news();
  // A wait may be gone once it is woken.
  while (waits != nullptr) std::exchange(waits, waits->next_)->wake();
}

void LiveCore::tick_done() noexcept {
  const Locked lock(*this);
  finish();
  came_back_.notify_all();
}

/// Where `pump` fails at the end of a caller's turn, the caller's own work is done all the same.
void LiveCore::starved() noexcept {
  if (std::exchange(retrying_, true)) return;
  post_to_ticks(retry_);
}

void LiveCore::review_later() noexcept {
  reviewing_ = true;
  starved();
}

void LiveCore::Retry::execute() noexcept {
  std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the memory is not there yet
  const Locked lock(core_);
  core_.try_again();
}

void LiveCore::try_again() noexcept {
  retrying_ = false;
  if (!std::exchange(reviewing_, false)) return;
  for (const auto& [id, session] : sessions) try {
      if (session->ended) continue;
      session->notify();  // a push may wait for memory
      session->fed();
    } catch (const std::bad_alloc&) {
      review_later();
    }
}

std::size_t output_count(const Recurrence& recurrence) noexcept {
  std::size_t count = recurrence.outputs.size();
  for (const Recurrence::Boundary& boundary : recurrence.boundaries) count += boundary.outputs.size();
  return count;
}

std::exception_ptr cancelled(const LiveSessionState& session, const char* why) noexcept {
  try {
    return std::make_exception_ptr(CancelledError(session.label() + why));
  } catch (const std::bad_alloc&) {
    return std::make_exception_ptr(CancelledError("cancelled"));  // the text needs no memory
  }
}

void LiveCore::shut_down() noexcept {
  if (in_ticks()) {
    std::fputs("millrace: live model: expected its end on another thread than that of its ticks, found it within LiveReader::on_news\n",
               stderr);
    std::abort();
  }
  {
    const Locked lock(*this);
    gone = true;
    stop();
    for (const auto& [id, session] : sessions)
      if (!session->ended) session->end_with(cancelled(*session, ": its model is gone"));
    sessions.clear();
    ready.clear();
    changed.raise(woken);
  }
  std::unique_lock lock(mutex);
  came_back_.wait(lock, [this] { return !batcher().tick_out(); });
  lock.unlock();
  join();
}

// ---- A session ----

LiveSessionState::LiveSessionState(std::shared_ptr<LiveCore> of, std::string called, SavedState from)
    : core(std::move(of)), name(std::move(called)), outputs(output_count(core->recurrence())), from_(std::move(from)) {}

/// One that nobody has a handle of any more.
LiveSessionState::~LiveSessionState() {
  if (!begun()) return;
  const LiveCore::Locked lock(*core);
  leave();
  forget_news(true);
}

std::string LiveSessionState::label() const {
  return name.empty() ? fmt::format("session {}", id()) : fmt::format("session {} '{}'", id(), name);
}

const Recurrence::Input& LiveSessionState::input(std::size_t index, std::optional<int>& level) const {
  const Recurrence& recurrence = core->recurrence();
  level.reset();
  if (index < recurrence.inputs.size()) return recurrence.inputs[index];
  index -= recurrence.inputs.size();
  for (const Recurrence::Boundary& boundary : recurrence.boundaries) {
    level = boundary.level;
    if (index < boundary.inputs.size()) return boundary.inputs[index];
    index -= boundary.inputs.size();
  }
  throw IndexError("live session: no such input");
}

LiveSequence::Sources LiveSessionState::make_sources() const {
  Sources fresh;
  const auto add = [&](const Recurrence::Input& port) {
    fresh.push_back(std::make_unique<RowAssembler>(port.name, port.dtype, port.row, core->options.queued_in));
  };
  for (const Recurrence::Input& port : core->recurrence().inputs) add(port);
  for (const Recurrence::Boundary& boundary : core->recurrence().boundaries)
    for (const Recurrence::Input& port : boundary.inputs) add(port);
  return fresh;
}

void LiveSessionState::begin() {
  SavedState from = *std::exchange(from_, std::nullopt);
  prepare(make_sources(), from);
  LiveSequence::begin(core->batcher(), std::move(from.states));
  core->sessions.emplace(id(), this);
  std::set<LiveId> node{id()};
  news = node.extract(node.begin());
}

void LiveSessionState::check_goes_on() const {
  if (error != nullptr) rethrow_own(error);
  if (ended) throw ArgumentError(label() + ": expected nothing after finish");
}

std::size_t LiveSessionState::room(std::size_t index) const {
  const RowSource& source = *sources()[index];
  const std::size_t row = source.row_bytes(), held = source.held_bytes(), most = core->options.queued_in;
  std::size_t rows = most > held ? (most - held) / row : 0;
  if (source.rows() == 0) rows = std::max<std::size_t>(rows, 1);
  return rows * row;
}

void LiveSessionState::check_may_fit(std::size_t index, std::size_t bytes) const {
  if (bytes <= core->options.queued_in) return;
  const std::size_t row = row_bytes(index), most = std::max<std::size_t>(core->options.queued_in / row, 1);
  if (bytes <= row) return;
  std::optional<int> level;
  throw ArgumentError(
      fmt::format("{}, input '{}': expected at most {} rows at once, as many as the {} bytes of queued_in hold, found {}: push takes "
                  "them piece by piece",
                  label(), input(index, level).name, most, core->options.queued_in, bytes / row));
}

void LiveSessionState::reserve(std::size_t index, std::size_t bytes) { sources()[index]->reserve(std::min(bytes, room(index))); }

std::size_t LiveSessionState::feed(std::size_t index, std::span<const std::byte> bytes) {
  const std::size_t taken = sources()[index]->feed(bytes.first(std::min(bytes.size(), room(index))));
  if (taken == 0) return 0;
  try {
    fed();
  } catch (const std::bad_alloc&) {  // the rows are queued
    core->review_later();
  }
  return taken;
}

void LiveSessionState::say(Mark next) {
  check_goes_on();
  core->prompt = true;
  refused = nullptr;
  mark = next;
  begun_mark = false;
  advance();
}

void LiveSessionState::withdraw() noexcept {
  begun_mark = false;
  mark.reset();
}

/// Goes as far as what was said allows. An error is the speaker's, and changes nothing.
void LiveSessionState::advance() {
  if (!mark || ended || !settled()) return;
  try {
    advance_once();
  } catch (const ArgumentError& wrong) {
    refused = std::make_exception_ptr(ArgumentError(label() + ": " + wrong.what()));
    withdraw();
  } catch (...) {
    refused = std::current_exception();
    withdraw();
  }
  notify();
}

/// A save and a reset are done when they were answered, the others now; levels that are open before the end close first.
void LiveSessionState::advance_once() {
  const Mark now = *mark;
  if ((now.kind == Mark::Kind::finish || now.kind == Mark::Kind::reset) && open_levels() > 0) return cross(false, open_levels());
  switch (now.kind) {
    case Mark::Kind::save: begun_mark = true; return save();
    case Mark::Kind::reset:
      check_whole();
      begun_mark = true;
      return begin_anew();
    case Mark::Kind::flush: break;
    case Mark::Kind::open:
    case Mark::Kind::close: cross(now.kind == Mark::Kind::open, now.level); break;
    case Mark::Kind::finish:
      check_whole();
      end();
      break;
  }
  mark.reset();
}

/// An end is refused, and the session goes on, where rows are left over.
void LiveSessionState::check_whole() const {
  for (std::size_t i = 0; i < sources().size(); ++i)
    if (std::optional<int> level; sources()[i]->rows() > 0)
      throw ArgumentError(fmt::format("expected as many rows of each input, found more of '{}'", input(i, level).name));
}

// ---- Results ----

void LiveSessionState::keep(std::size_t first, Row row) {
  for (std::size_t i = 0; i < row.size(); ++i) outputs[first + i].bytes.reserve(outputs[first + i].bytes.size() + row[i].size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    Rows& to = outputs[first + i];
    to.bytes.append(reinterpret_cast<const char*>(row[i].data()), row[i].size());
    ++to.count;
    waiting_bytes += row[i].size();
  }
  ++results;
  if (waiting_bytes > core->options.queued_out) core->batcher().allow(id(), false);
  notify();
}

void LiveSessionState::take(std::vector<Rows>& into) noexcept {
  into.swap(outputs);
  results = 0;
  const bool held_up = std::exchange(waiting_bytes, 0) > core->options.queued_out;
  if (ended) {
    if (!news.empty()) core->ready.insert(std::move(news));
    return;
  }
  forget_news(false);
  if (!held_up) return;
  try {
    core->batcher().allow(id(), true);
  } catch (const std::bad_alloc&) {  // it may step
    core->review_later();
  }
}

void LiveSessionState::notify() noexcept {
  signal.raise(core->woken);
  if (!has_news()) return;
  core->told.splice(core->told.end(), reader);
  if (core->sessions.count(id()) == 0) return;
  if (!news.empty()) core->ready.insert(std::move(news));
  core->changed.raise(core->woken);
}

void LiveSessionState::forget_news(bool end) noexcept {
  if (news.empty()) news = core->ready.extract(id());
  if (end) core->sessions.erase(id());
}

void LiveSessionState::on_step(std::uint64_t, Row row) {
  keep(0, row);
  advance();
}

void LiveSessionState::on_crossed(std::size_t boundary, std::uint64_t, Row row) {
  const Recurrence& recurrence = core->recurrence();
  std::size_t first = recurrence.outputs.size();
  for (std::size_t i = 0; i < boundary; ++i) first += recurrence.boundaries[i].outputs.size();
  if (!row.empty()) keep(first, row);
  notify();
  advance();
}

void LiveSessionState::on_failed(std::uint64_t seq, std::exception_ptr cause) {
  std::exception_ptr named = cause;  // where there is no memory to say of what
  try {
    named = std::make_exception_ptr(LiveError(fmt::format("{}, step {}: {}", label(), seq, text_of_error(cause)), id(), seq, cause));
  } catch (const std::bad_alloc&) {
  }
  end_with(std::move(named));
}

void LiveSessionState::on_drained(bool anew) {
  if (!anew) end_with(nullptr);
}

/// After a reset that was cancelled `mark` is another one, which waits for this.
void LiveSessionState::on_begun_anew() {
  end_begun_mark();
  notify();
  advance();
}

/// A save that was cancelled leaves no state.
void LiveSessionState::on_saved(std::vector<Tensor> states) {
  if (begun_mark) {
    try {
      saved_ = state_with(std::move(states));
    } catch (const std::bad_alloc&) {
      refused = std::current_exception();
    }
  }
  end_begun_mark();
  notify();
  advance();
}

bool LiveSessionState::end_begun_mark() noexcept {
  if (!begun_mark) return false;
  begun_mark = false;
  mark.reset();
  return true;
}

SavedState LiveSessionState::take_saved() { return *std::exchange(saved_, std::nullopt); }

void LiveSessionState::end_with(std::exception_ptr why) noexcept {
  if (ended) return;
  ended = true;
  error = std::move(why);
  leave();
  notify();
}

}  // namespace millrace::detail
