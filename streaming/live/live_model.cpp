// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_model.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <set>

#include <fmt/format.h>

#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/streaming/live/live_core.h>

namespace millrace {

using detail::cancelled;
using detail::LiveCore;
using detail::LiveSessionState;
using detail::LiveSignal;
using detail::output_count;
using Core = std::shared_ptr<LiveCore>;
using Sequence = std::shared_ptr<LiveSessionState>;
using Mark = LiveSessionState::Mark;

namespace {

/// One operation that says something is under way at a time.
class Turn {
 public:
  explicit Turn(Sequence sequence) : sequence_(std::move(sequence)) {
    const LiveCore::Locked lock(*sequence_->core);
    if (sequence_->busy)
      throw ArgumentError(sequence_->label() + ": expected one operation that says something at a time, found another under way");
    sequence_->busy = true;
  }
  ~Turn() {
    const LiveCore::Locked lock(*sequence_->core);
    sequence_->busy = false;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Sequence sequence_;
};

task<void> limited(std::optional<Duration> deadline, task<void> work) {
  return deadline ? with_deadline(*deadline, std::move(work)) : std::move(work);
}
template <class T>
task<T> limited(std::optional<Duration> deadline, task<T> work) {
  return deadline ? with_deadline(*deadline, std::move(work)) : std::move(work);
}

template <class Who>
void check_written(const Tensor& value, Who who) {
  if (value.elements() > 0 && !value.storage()->written())
    throw UninitializedError(fmt::format("{}, found {}, to whose storage nothing was written", who(), value.to_string()));
}

// ---- Saying ----

/// Withdraws the mark of a task that waits no longer for it.
class Said {
 public:
  explicit Said(LiveSessionState& sequence) noexcept : sequence_(sequence) {}
  ~Said() {
    const LiveCore::Locked lock(*sequence_.core);
    sequence_.withdraw();
  }
  Said(const Said&) = delete;
  Said& operator=(const Said&) = delete;

 private:
  LiveSessionState& sequence_;
};

task<void> say_mark(Sequence sequence, Mark mark) {
  const Said said(*sequence);
  std::uint64_t seen = 0;
  for (bool first = true;; first = false) {
    {
      const LiveCore::Locked lock(*sequence->core);
      if (first) sequence->say(mark);
      if (sequence->refused != nullptr) std::rethrow_exception(std::exchange(sequence->refused, nullptr));
      if (sequence->error != nullptr) rethrow_own(sequence->error);
      if (!sequence->mark || sequence->ended) co_return;
      seen = sequence->signal.version();
    }
    LiveSignal::SignalWait wait(sequence->core->mutex, sequence->signal, seen);
    co_await wait;
  }
}

/// Rows of one input, on their way in.
struct Piece {
  std::size_t input = 0;
  std::size_t taken = 0;
  Tensor rows;
};

std::size_t input_named(const LiveSessionState& sequence, const std::string& name, std::optional<int>& level) {
  std::string known;
  for (std::size_t i = 0; i < sequence.input_count(); ++i) {
    const std::string& found = sequence.input(i, level).name;
    if (found == name) return i;
    known += (known.empty() ? "" : ", ") + found;
  }
  throw ArgumentError(fmt::format("{}: expected rows of {}, found '{}'", sequence.label(), known, name));
}

/// Rows of a step need all levels open; `opening`: levels that the rows bring with them.
void check_open(const LiveSessionState& sequence, const std::string& name, int opening = 0) {
  if (const int open = sequence.open_levels() + opening; open < sequence.core->recurrence().levels - 1)
    throw LoDError(fmt::format("{}, input '{}': expected open of level {} before rows", sequence.label(), name, open + 1));
}

Piece piece_of(const LiveSessionState& sequence, const std::string& name, const Tensor& rows, int opening = 0) {
  std::optional<int> level;
  Piece piece;
  piece.input = input_named(sequence, name, level);
  const Recurrence::Input& input = sequence.input(piece.input, level);
  if (rows.dtype() != input.dtype)
    throw DTypeError(
        fmt::format("{}, input '{}': expected {}, found {}", sequence.label(), name, name_of(input.dtype), name_of(rows.dtype())));
  if (rows.rank() != input.row.rank() + 1 || rows.dims() != input.row.inserted(0, rows.dim(0)))
    throw ShapeError(fmt::format("{}, input '{}': expected rows {}, found {}", sequence.label(), name,
                                 input.row.inserted(0, DDim::unknown).to_string(), rows.dims().to_string()));
  if (!level && rows.dim(0) > 0) check_open(sequence, name, opening);
  check_written(rows, [&] { return fmt::format("{}, input '{}': expected rows that were written", sequence.label(), name); });
  if (!rows.is_contiguous() || !rows.place().is_cpu())
    throw ArgumentError(fmt::format("{}, input '{}': expected contiguous rows on the CPU", sequence.label(), name));
  piece.rows = rows;
  return piece;
}

std::span<const std::byte> left_of(const Piece& piece) {
  return std::span<const std::byte>(static_cast<const std::byte*>(piece.rows.raw()), piece.rows.bytes()).subspan(piece.taken);
}

/// Queues rows of the pieces, as many as there is room for; true when all are queued. Memory is asked for before any input takes rows: std::bad_alloc changes nothing.
bool feed(LiveSessionState& sequence, std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) sequence.reserve(piece.input, left_of(piece).size());
  bool all = true;
  for (Piece& piece : pieces) {
    const std::span<const std::byte> bytes = left_of(piece);
    if (!bytes.empty()) piece.taken += sequence.feed(piece.input, bytes);
    all = all && left_of(piece).empty();
  }
  return all;
}

/// `feed` for pieces of which some rows are queued already. Where there is no memory it is tried again for some seconds; then the session ends with the
/// error, since nobody could tell which rows it took.
bool feed_more(LiveSessionState& sequence, std::vector<Piece>& pieces, int& starved) {
  constexpr int most = 500;
  try {
    return feed(sequence, pieces);
  } catch (const std::bad_alloc&) {
    const bool begun = std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.taken > 0; });
    if (!begun) throw;
    if (++starved > most) {
      sequence.end_with(std::current_exception());
      throw;
    }
    sequence.core->review_later();
    return false;
  }
}

task<void> say_rows(Sequence sequence, LiveRows rows) {
  std::vector<Piece> pieces;
  for (const auto& [name, value] : rows) {
    const Point there = value.ready();
    co_await ready(there);
    const LiveCore::Locked lock(*sequence->core);
    sequence->check_goes_on();
    pieces.push_back(piece_of(*sequence, name, value.tensor()));
  }
  std::uint64_t seen = 0;
  int starved = 0;
  for (;;) {
    {
      const LiveCore::Locked lock(*sequence->core);
      sequence->check_goes_on();
      sequence->core->prompt = true;
      if (!sequence->begins_anew() && feed_more(*sequence, pieces, starved))
        co_return;  // rows behind a reset that was cancelled wait for it
      seen = sequence->signal.version();
    }
    LiveSignal::SignalWait wait(sequence->core->mutex, sequence->signal, seen);
    co_await wait;
  }
}

/// Sequence `at` of what has `depth` levels; of what has one less, its row for it.
LiveRows nth(const LiveRows& rows, int depth, std::int64_t at, bool inner) {
  LiveRows picked;
  for (const auto& [name, value] : rows) {
    const bool deep = value.lod().depth() == depth;
    if (deep != inner) continue;
    if (deep) {
      const LoDTensor one = value.slice(0, at, at + 1);
      picked.emplace(name, LoDTensor(one.tensor(), one.lod().erase_outermost()));
    } else {
      picked.emplace(name, LoDTensor(value.tensor().rows(at, at + 1)));
    }
  }
  return picked;
}

int depth_of(const LiveRows& rows) {
  int depth = 0;
  for (const auto& [name, value] : rows) depth = std::max(depth, value.lod().depth());
  return depth;
}

/// The number of outermost sequences: as many in each input, and as many rows of an input without levels beside those that have one.
std::int64_t sequences_of(const LiveRows& rows, int depth, const std::string& who) {
  std::optional<std::int64_t> count;
  for (const auto& [name, value] : rows) {
    const int own = value.lod().depth();
    if (own != depth && !(own == 0 && depth == 1))
      throw LoDError(fmt::format("{}, input '{}': expected {} levels of LoD as another input has, found {}", who, name, depth, own));
    const std::int64_t here = own == depth ? static_cast<std::int64_t>(value.lod().lengths(0).size()) : value.rows();
    if (count && *count != here)
      throw LoDError(fmt::format("{}, input '{}': expected {} sequences as another input has, found {}", who, name, *count, here));
    count = here;
  }
  return count.value_or(0);
}

/// Refuses rows of `depth` levels before the first of their sequences opens.
task<void> check_deep(Sequence sequence, const LiveRows* rows, int depth) {
  for (const auto& [name, value] : *rows) {
    const Point there = value.ready();
    co_await ready(there);
  }
  const LiveCore::Locked lock(*sequence->core);
  sequence->check_goes_on();
  const int most = sequence->core->recurrence().levels - 1 - sequence->open_levels();
  const LoD* first = nullptr;
  for (const auto& [name, value] : *rows) {
    piece_of(*sequence, name, value.tensor(), depth);
    if (value.lod().depth() > most)
      throw LoDError(fmt::format("{}, input '{}': expected at most {} levels of LoD, as many as inner sequences may open, found {}",
                                 sequence->label(), name, most, value.lod().depth()));
    if (value.lod().depth() < depth) continue;
    if (first == nullptr) first = &value.lod();
    for (int level = 0; level + 1 < depth; ++level)
      if (value.lod().lengths(level) != first->lengths(level))
        throw LoDError(fmt::format("{}, input '{}': expected the sequences of another input in level {} of the LoD, found others",
                                   sequence->label(), name, level));
  }
}

/// Rows, with inner sequences that open and close around them.
task<void> say_all(Sequence sequence, LiveRows rows) {
  const int depth = depth_of(rows);
  if (depth == 0) {
    task<void> plain = say_rows(sequence, std::move(rows));
    co_await std::move(plain);
    co_return;
  }
  const std::int64_t count = sequences_of(rows, depth, sequence->label());
  for (std::int64_t i = 0; i < count; ++i) {
    LiveRows before = nth(rows, depth, i, false);
    if (!before.empty()) {
      task<void> first = say_rows(sequence, std::move(before));
      co_await std::move(first);
    }
    int level = 0;
    {
      const LiveCore::Locked lock(*sequence->core);
      level = sequence->open_levels() + 1;
    }
    Mark mark;
    mark.kind = Mark::Kind::open;
    mark.level = level;
    task<void> opened = say_mark(sequence, mark);
    co_await std::move(opened);
    task<void> within = say_all(sequence, nth(rows, depth, i, true));
    co_await std::move(within);
    mark.kind = Mark::Kind::close;
    task<void> closed = say_mark(sequence, mark);
    co_await std::move(closed);
  }
}

task<void> push_alone(Sequence sequence, LiveRows rows) {
  const Turn turn(sequence);
  if (const int depth = depth_of(rows); depth > 0) {
    sequences_of(rows, depth, sequence->label());
    task<void> checks = check_deep(sequence, &rows, depth);
    co_await std::move(checks);
  }
  // Some of the inner sequences may have been said by then, and others not: nobody could go on from there.
  const auto end_deep = [&sequence, deep = depth_of(rows) > 0] {
    const LiveCore::Locked lock(*sequence->core);
    if (deep) sequence->end_with(std::current_exception());
  };
  try {
    task<void> work = say_all(sequence, std::move(rows));
    co_await std::move(work);
  } catch (const std::bad_alloc&) {
    end_deep();
    throw;
  } catch (const OutOfMemoryError&) {
    end_deep();
    throw;
  }
}

task<void> mark_alone(Sequence sequence, Mark mark) {
  const Turn turn(sequence);
  task<void> work = say_mark(sequence, mark);
  co_await std::move(work);
}

task<std::uint64_t> flush_alone(Sequence sequence) {
  const Turn turn(sequence);
  Mark mark;
  mark.kind = Mark::Kind::flush;
  task<void> work = say_mark(sequence, mark);
  co_await std::move(work);
  const LiveCore::Locked lock(*sequence->core);
  co_return sequence->answered();
}

// ---- Saving ----

task<SavedState> save_alone(Sequence sequence) {
  const Turn turn(sequence);
  Mark mark;
  mark.kind = Mark::Kind::save;
  task<void> work = say_mark(sequence, mark);
  co_await std::move(work);
  const LiveCore::Locked lock(*sequence->core);
  sequence->check_goes_on();
  co_return sequence->take_saved();
}

task<std::string> save_sealed(Sequence sequence) {
  const StateSeal& seal = sequence->core->seal();
  task<SavedState> saving = save_alone(sequence);
  const SavedState state = co_await std::move(saving);
  co_return seal.seal(state);
}

/// Where there is room for one more.
void begin(LiveCore& core, LiveSessionState& sequence) {
  const LiveCore::Locked lock(core);
  if (core.gone) throw CancelledError("live model: expected a model that a session may begin on, found that it is gone");
  if (core.batcher().live() >= core.options.sessions)
    throw OverflowError(fmt::format("live model: expected at most {} sessions, found another", core.options.sessions));
  sequence.begin();
}

task<Sequence> fork_of(Sequence sequence) {
  task<SavedState> saving = save_alone(sequence);
  SavedState state = co_await std::move(saving);
  auto made = std::make_shared<LiveSessionState>(sequence->core, sequence->name, std::move(state));
  begin(*sequence->core, *made);
  co_return std::move(made);
}

// ---- Results ----

using Waiting = std::vector<LiveSessionState::Rows>;

/// The outputs of a recurrence, in the order in which a sequence keeps them.
template <class F>
void each_output(const Recurrence& recurrence, F&& f) {
  std::size_t index = 0;
  for (const Recurrence::Output& output : recurrence.outputs) f(index++, output, true);
  for (const Recurrence::Boundary& boundary : recurrence.boundaries)
    for (const Recurrence::Output& output : boundary.outputs) f(index++, output, false);
}

/// One tensor per output, with memory for the rows that `waiting` sequences have together: `joined_into` needs none.
std::vector<Tensor> room_for(const Recurrence& recurrence, const std::vector<const Waiting*>& waiting) {
  std::vector<Tensor> made(output_count(recurrence));
  each_output(recurrence, [&](std::size_t index, const Recurrence::Output& output, bool) {
    std::int64_t total = 0;
    for (const Waiting* one : waiting) total += (*one)[index].count;
    made[index] = Tensor(output.dtype, output.row.inserted(0, total));
    made[index].storage()->mark_written();
  });
  return made;
}

/// Rows of several sequences, one behind the other.
void joined_into(const std::vector<Tensor>& made, std::span<const Waiting> taken) noexcept {
  for (std::size_t index = 0; index < made.size(); ++index) {
    auto* to = static_cast<char*>(made[index].raw_mutable());
    for (const Waiting& one : taken) to = std::copy(one[index].bytes.begin(), one[index].bytes.end(), to);
  }
}

/// Rows of one sequence by the names of the outputs. Outputs of inner sequences are there where one has closed.
LiveRows rows_by_name(const Recurrence& recurrence, const std::vector<Tensor>& rows) {
  LiveRows made;
  each_output(recurrence, [&](std::size_t index, const Recurrence::Output& output, bool of_step) {
    if (of_step || rows[index].dim(0) > 0) made.emplace(output.name, rows[index]);
  });
  return made;
}
std::vector<Tensor> rows_in_order(const Recurrence&, const std::vector<Tensor>& rows) { return rows; }

/// Rows of several sequences by the names of the outputs, with a level of LoD that tells the sequences apart.
LiveRows batch_by_name(const Recurrence& recurrence, const std::vector<Tensor>& rows, const std::vector<const Waiting*>& waiting) {
  LiveRows made;
  each_output(recurrence, [&](std::size_t index, const Recurrence::Output& output, bool of_step) {
    if (rows[index].dim(0) == 0 && !of_step) return;
    LoD::Level lengths;
    for (const Waiting* one : waiting) lengths.push_back((*one)[index].count);
    made.emplace(output.name, LoDTensor(rows[index], LoD::from_lengths({lengths})));
  });
  return made;
}

/// `next` where it need not wait: sets `made`, by `convert`, or to nothing at the end. Else false, and `waits(sequence)` is called under the lock.
/// Memory is asked for before the rows are taken, so that none is lost where there is none.
template <class T, class Convert, class Waits>
bool take_next(LiveSessionState& sequence, std::optional<T>& made, Convert convert, Waits waits) {
  LiveCore& core = *sequence.core;
  std::vector<Tensor> rows;
  Waiting taken;
  {
    const LiveCore::Locked lock(core);
    if (sequence.results > 0) {
      rows = room_for(core.recurrence(), {&sequence.outputs});
      std::optional<T> converted(convert(core.recurrence(), rows));
      taken.resize(sequence.outputs.size());
      sequence.take(taken);
      made.swap(converted);
    } else if (!sequence.ended) {
      waits(sequence);
      return false;
    } else {
      sequence.forget_news(true);
      core.changed.raise(core.woken);
      if (sequence.error != nullptr) rethrow_own(sequence.error);
      made.reset();
      return true;
    }
  }
  joined_into(rows, {&taken, 1});
  return true;
}

task<std::optional<LiveRows>> next_of(Sequence sequence) {
  std::optional<LiveRows> made;
  std::uint64_t seen = 0;
  while (!take_next(*sequence, made, &rows_by_name, [&seen](LiveSessionState& of) { seen = of.signal.version(); })) {
    LiveSignal::SignalWait wait(sequence->core->mutex, sequence->signal, seen);
    co_await wait;
  }
  co_return std::move(made);
}

/// `try_next`: `convert` makes the caller's values of the rows.
template <class T, class Convert>
bool take_at_once(LiveSessionState& sequence, std::optional<T>& made, const std::shared_ptr<LiveReader>& reader, Convert convert) {
  return take_next(sequence, made, convert, [&reader](LiveSessionState& of) {
    if (reader != nullptr) of.reader = std::list{reader};
  });
}

/// Sequences of which something is to be told.
struct Ready {
  LiveBatch batch;
  std::vector<LiveSessionState*> with_rows;
  std::vector<LiveSessionState*> others;
  std::vector<Waiting> taken;  // from those with rows
  std::vector<Tensor> rows;
};

/// Takes the results that are ready of all sequences; under the lock. Memory is asked for before the first of them changes.
void take_ready(LiveCore& core, Ready& ready) {
  std::vector<const Waiting*> waiting;
  for (auto at = core.ready.begin(); at != core.ready.end();) {
    const auto found = core.sessions.find(*at);
    if (found == core.sessions.end()) {
      at = core.ready.erase(at);
      continue;
    }
    ++at;
    LiveSessionState& sequence = *found->second;
    if (sequence.results > 0) {
      ready.batch.ids.push_back(sequence.id());
      waiting.push_back(&sequence.outputs);
      ready.taken.emplace_back(sequence.outputs.size());
    }
    (sequence.results > 0 ? ready.with_rows : ready.others).push_back(&sequence);
    if (!sequence.ended) continue;
    if (sequence.error == nullptr)
      ready.batch.ended.push_back(sequence.id());
    else
      ready.batch.failed.emplace_back(sequence.id(), sequence.error);
  }
  if (ready.with_rows.empty() && ready.others.empty()) return;
  ready.rows = room_for(core.recurrence(), waiting);
  ready.batch.outputs = batch_by_name(core.recurrence(), ready.rows, waiting);
  for (LiveSessionState* sequence : ready.others) sequence->forget_news(sequence->ended);
  for (std::size_t i = 0; i < ready.with_rows.size(); ++i) {
    LiveSessionState& sequence = *ready.with_rows[i];
    const bool told = sequence.ended;  // with room for results a sequence may end here
    sequence.take(ready.taken[i]);
    if (told) sequence.forget_news(true);
  }
}

task<std::optional<LiveBatch>> next_of_all(Core core) {
  std::uint64_t seen = 0;
  for (;;) {
    Ready ready;
    {
      const LiveCore::Locked lock(*core);
      const bool none = core->sessions.empty();
      take_ready(*core, ready);
      if (none) co_return std::nullopt;
      seen = core->changed.version();
    }
    if (!ready.batch.ids.empty() || !ready.batch.ended.empty() || !ready.batch.failed.empty()) {
      joined_into(ready.rows, ready.taken);
      co_return std::optional<LiveBatch>(std::move(ready.batch));
    }
    LiveSignal::SignalWait wait(core->mutex, core->changed, seen);
    co_await wait;
  }
}

/// None: zeros.
std::vector<Tensor> given_of(const Recurrence& recurrence, LiveStart& start) {
  std::vector<Tensor> given;
  if (start.given.empty()) return given;
  for (const Recurrence::Given& wanted : recurrence.given) {
    const auto found = start.given.find(wanted.name);
    Tensor& value = given.emplace_back();
    if (found == start.given.end()) continue;
    if (found->second.dtype() != wanted.dtype || found->second.elements() != wanted.dims.elements())
      throw ArgumentError(fmt::format(
          "given '{}': expected {}{}, found {}{}; an extent that the program leaves open is 1, unless the rows of the model say it",
          wanted.name, name_of(wanted.dtype), wanted.dims.to_string(), name_of(found->second.dtype()), found->second.dims().to_string()));
    check_written(found->second, [&] { return fmt::format("given '{}': expected a value that was written", wanted.name); });
    value = found->second.reshape(wanted.dims);
    start.given.erase(found);
  }
  if (!start.given.empty())
    throw ArgumentError(fmt::format("expected a value that the program takes at the start, found '{}'", start.given.begin()->first));
  return given;
}

Sequence restored(const Core& core, LiveStart start) {
  if (!start.given.empty()) throw ArgumentError("live model: expected a saved state or given values, found both");
  return std::make_shared<LiveSessionState>(core, std::move(start.name), core->seal().unseal(start.state));
}

/// A state may hold more rows that wait than `queued_in` of this model.
void begin_again(LiveCore& core, LiveSessionState& sequence) {
  try {
    begin(core, sequence);
  } catch (const SavedStateError&) {
    throw;
  } catch (const ParseError& error) {
    throw SavedStateError(fmt::format("saved state: {}", error.what()));
  }
}

task<Sequence> open_sequence(Core core, LiveStart start) {
  if (!start.state.empty()) {
    Sequence again = restored(core, std::move(start));
    begin_again(*core, *again);
    co_return std::move(again);
  }
  for (const auto& [name, value] : start.given) {
    const Point there = value.ready();
    co_await ready(there);
  }
  SavedState from;
  from.given = given_of(core->recurrence(), start);
  auto sequence = std::make_shared<LiveSessionState>(core, std::move(start.name), std::move(from));
  begin(*core, *sequence);
  co_return std::move(sequence);
}

task<LiveRows> named(Core core, LoDTensor rows) {
  std::size_t inputs = core->recurrence().inputs.size();
  for (const Recurrence::Boundary& boundary : core->recurrence().boundaries) inputs += boundary.inputs.size();
  if (inputs != 1) throw ArgumentError(fmt::format("live model: expected rows by name for {} inputs, found rows alone", inputs));
  LiveRows by_name;
  by_name.emplace(core->recurrence().inputs.front().name, std::move(rows));
  co_return std::move(by_name);
}

task<void> push_unnamed(Sequence sequence, LoDTensor rows) {
  task<LiveRows> naming = named(sequence->core, std::move(rows));
  LiveRows by_name = co_await std::move(naming);
  task<void> work = push_alone(sequence, std::move(by_name));
  co_await std::move(work);
}

// ---- Many ----

std::vector<Sequence> sequences_of_ids(LiveCore& core, const std::vector<LiveId>& ids) {
  std::vector<Sequence> all;
  std::set<LiveId> seen;
  const LiveCore::Locked lock(core);
  for (const LiveId id : ids) {
    if (!seen.insert(id).second) throw ArgumentError(fmt::format("live model: expected each session once, found {} twice", id));
    const auto found = core.sessions.find(id);
    if (found == core.sessions.end()) throw ArgumentError(fmt::format("live model: expected the number of a live session, found {}", id));
    auto sequence = found->second->weak_from_this().lock();  // null: its last handle is going
    if (sequence == nullptr) throw ArgumentError(fmt::format("live model: expected the number of a live session, found {}", id));
    all.push_back(std::move(sequence));
  }
  return all;
}

/// Why pushes failed, one for each session.
using Failures = std::vector<std::exception_ptr>;

/// The failure of one session cancels no push to another.
task<void> push_beside(Sequence sequence, LiveRows rows, std::shared_ptr<Failures> failures, std::size_t index) {
  TaskInfo& me = co_await this_task::info();
  try {
    task<void> work = push_alone(std::move(sequence), std::move(rows));
    co_await std::move(work);
  } catch (...) {
    if (me.cancelled()) throw;
    failures->at(index) = std::current_exception();
  }
}

/// Each sequence its piece, side by side: one that waits for room holds nobody up.
task<void> push_each(Scope& scope, std::vector<Sequence> sequences, LiveRows rows, std::shared_ptr<Failures> failures) {
  std::vector<LiveRows> pieces(sequences.size());
  for (auto& [name, value] : rows) {
    if (value.lod().depth() == 0)
      throw LoDError(fmt::format("live model, input '{}': expected a level of LoD that tells the sessions apart, found none", name));
    std::vector<LoDTensor> own = value.peel();
    if (own.size() != sequences.size())
      throw LoDError(
          fmt::format("live model, input '{}': expected {} sequences, one for each session, found {}", name, sequences.size(), own.size()));
    for (std::size_t i = 0; i < own.size(); ++i) pieces[i].emplace(name, std::move(own[i]));
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    try {
      scope.spawn(push_beside(sequences[i], std::move(pieces[i]), failures, i), "push of a live session");
    } catch (const std::bad_alloc&) {
      failures->at(i) = std::current_exception();
    }
  }
  co_return;
}

task<void> push_many(Core core, std::vector<LiveId> ids, LiveRows rows) {
  std::vector<Sequence> sequences = sequences_of_ids(*core, ids);
  const auto failures = std::make_shared<Failures>(sequences.size());
  task<void> work = with_scope(push_each, std::move(sequences), std::move(rows), failures);
  co_await std::move(work);
  for (const std::exception_ptr& failure : *failures)
    if (failure != nullptr) std::rethrow_exception(failure);
}

task<void> push_many_unnamed(Core core, std::vector<LiveId> ids, LoDTensor rows) {
  task<LiveRows> naming = named(core, std::move(rows));
  LiveRows by_name = co_await std::move(naming);
  task<void> work = push_many(core, std::move(ids), std::move(by_name));
  co_await std::move(work);
}

task<void> refused_with(std::exception_ptr error) {
  co_await this_task::checkpoint();
  std::rethrow_exception(std::move(error));
}

task<void> marked(const Sequence& sequence, Mark::Kind kind, int level, std::optional<Duration> deadline) {
  Mark mark;
  mark.kind = kind;
  mark.level = level;
  return limited(deadline, mark_alone(sequence, mark));
}

}  // namespace

// ---- LiveSession ----

LiveSession& LiveSession::operator=(LiveSession&& other) noexcept {
  if (this == &other) return *this;
  const LiveSession old(std::move(sequence_));
  sequence_ = std::move(other.sequence_);
  return *this;
}

LiveSession::~LiveSession() {
  if (sequence_ == nullptr) return;
  cancel();
  const LiveCore::Locked lock(*sequence_->core);
  sequence_->forget_news(true);
  sequence_->core->changed.raise(sequence_->core->woken);
}

void LiveSession::cancel() const noexcept {
  if (sequence_ == nullptr) return;
  const LiveCore::Locked lock(*sequence_->core);
  sequence_->end_with(cancelled(*sequence_, " was cancelled"));
}

const std::shared_ptr<LiveSessionState>& LiveSession::present() const {
  if (sequence_ == nullptr)
    throw ArgumentError("live session: expected a session, found a handle without one, such as one that was moved from");
  return sequence_;
}
LiveSessionState& LiveSession::state() const { return *present(); }
LiveId LiveSession::id() const noexcept { return sequence_ == nullptr ? 0 : sequence_->id(); }
std::uint64_t LiveSession::steps() const {
  const LiveCore::Locked lock(*state().core);
  return state().answered();
}
Executor& LiveSession::executor() const { return state().core->executor; }

Tensor LiveSession::rows_of(DType dtype, std::span<const std::byte> bytes) const {
  const Recurrence::Input& input = state().core->recurrence().inputs.at(0);
  const std::size_t row = static_cast<std::size_t>(input.row.elements()) * size_of(input.dtype);
  if (dtype != input.dtype || row == 0 || bytes.size() % row != 0)
    throw ArgumentError(fmt::format("{}, input '{}': expected whole rows of {}{}, found {} bytes of {}", state().label(), input.name,
                                    name_of(input.dtype), input.row.to_string(), bytes.size(), name_of(dtype)));
  Tensor rows(dtype, input.row.inserted(0, static_cast<std::int64_t>(bytes.size() / row)));
  rows.storage()->mark_written();
  if (!bytes.empty()) std::memcpy(rows.raw_mutable(), bytes.data(), bytes.size());
  return rows;
}

/// Values of another kind are an error of the operation, as other rows are.
task<void> LiveSession::push_bytes(DType dtype, std::span<const std::byte> bytes, Limit deadline) const {
  static_cast<void>(present());
  try {
    return push(LoDTensor(rows_of(dtype, bytes)), deadline);
  } catch (...) {
    return refused_with(std::current_exception());
  }
}
task<void> LiveSession::push(LiveRows rows, Limit deadline) const { return limited(deadline, push_alone(present(), std::move(rows))); }
task<void> LiveSession::push(LoDTensor rows, Limit deadline) const { return limited(deadline, push_unnamed(present(), std::move(rows))); }
task<std::optional<LiveRows>> LiveSession::next(Limit deadline) const { return limited(deadline, next_of(present())); }
bool LiveSession::try_push(const LiveRows& rows) const {
  for (const auto& [name, value] : rows)
    if (value.lod().depth() > 0 || !value.ready().reached()) return false;
  const LiveCore::Locked lock(*state().core);
  if (state().busy || state().begins_anew()) return false;
  state().check_goes_on();
  std::vector<Piece> pieces;
  pieces.reserve(rows.size());
  for (const auto& [name, value] : rows) {
    pieces.push_back(piece_of(state(), name, value.tensor()));
    state().check_may_fit(pieces.back().input, pieces.back().rows.bytes());
    if (pieces.back().rows.bytes() > state().room(pieces.back().input)) return false;
  }
  ++state().core->gathered;
  return feed(state(), pieces);
}
bool LiveSession::try_push(std::span<const std::byte> rows) const {
  const LiveCore::Locked lock(*state().core);
  if (state().busy || state().begins_anew()) return false;
  state().check_goes_on();
  if (state().input_count() != 1)
    throw ArgumentError(fmt::format("{}: expected rows by name for {} inputs, found rows alone", state().label(), state().input_count()));
  const std::string& name = state().core->recurrence().inputs.at(0).name;
  const std::size_t row = state().row_bytes(0);
  if (row == 0 || rows.size() % row != 0)
    throw ArgumentError(
        fmt::format("{}, input '{}': expected whole rows of {} bytes, found {} bytes", state().label(), name, row, rows.size()));
  if (!rows.empty()) check_open(state(), name);
  state().check_may_fit(0, rows.size());
  if (rows.size() > state().room(0)) return false;
  ++state().core->gathered;
  state().feed(0, rows);
  return true;
}
bool LiveSession::try_next(std::optional<LiveRows>& made, const std::shared_ptr<LiveReader>& reader) const {
  return take_at_once(state(), made, reader, &rows_by_name);
}
bool LiveSession::try_next(std::optional<std::vector<Tensor>>& made, const std::shared_ptr<LiveReader>& reader) const {
  return take_at_once(state(), made, reader, &rows_in_order);
}
task<void> LiveSession::open_level(int level, Limit deadline) const { return marked(present(), Mark::Kind::open, level, deadline); }
task<void> LiveSession::close_level(int level, Limit deadline) const { return marked(present(), Mark::Kind::close, level, deadline); }
task<std::uint64_t> LiveSession::flush(Limit deadline) const { return limited(deadline, flush_alone(present())); }
task<void> LiveSession::reset(Limit deadline) const { return marked(present(), Mark::Kind::reset, 0, deadline); }
task<std::string> LiveSession::save(Limit deadline) const { return limited(deadline, save_sealed(present())); }
task<void> LiveSession::finish(Limit deadline) const { return marked(present(), Mark::Kind::finish, 0, deadline); }

// ---- LiveModel ----

LiveModel::LiveModel(Runtime& runtime, const Program& program, LiveOptions options)
    : means_(runtime.means()),
      core_(
          std::make_shared<LiveCore>(runtime, std::make_shared<const Recurrence>(make_recurrence(program, options.recurrence)), options)) {}
LiveModel::~LiveModel() { core_->shut_down(); }

const Recurrence& LiveModel::recurrence() const noexcept { return core_->recurrence(); }
Executor& LiveModel::executor() const { return core_->executor; }
std::size_t LiveModel::live_sessions() const {
  const LiveCore::Locked lock(*core_);
  return core_->batcher().live();
}
Batcher::Stats LiveModel::stats() const {
  const LiveCore::Locked lock(*core_);
  return core_->batcher().stats();
}
LiveGathering LiveModel::gather() const { return LiveGathering(core_); }

LiveGathering::LiveGathering(std::shared_ptr<LiveCore> core) noexcept : core_(std::move(core)) {
  const LiveCore::Locked lock(*core_);
  ++core_->gatherings;
}
LiveGathering::~LiveGathering() {
  if (core_ == nullptr) return;
  const LiveCore::Locked lock(*core_);
  --core_->gatherings;
}

namespace {

// A function of its own: LiveSession is made by its friend, from what this gives.
template <class Make>
task<LiveSession> opened(task<Sequence> opening, Make make) {
  Sequence sequence = co_await std::move(opening);
  LiveSession session = make(std::move(sequence));
  co_return std::move(session);
}

}  // namespace

task<LiveSession> LiveSession::fork(Limit deadline) const {
  return limited(deadline, opened(fork_of(present()), [](Sequence sequence) { return LiveSession(std::move(sequence)); }));
}

task<LiveSession> LiveModel::open(LiveStart start, Limit deadline) const {
  return limited(deadline,
                 opened(open_sequence(core_, std::move(start)), [](Sequence sequence) { return LiveSession(std::move(sequence)); }));
}
task<void> LiveModel::push(std::vector<LiveId> ids, LiveRows rows, Limit deadline) const {
  return limited(deadline, push_many(core_, std::move(ids), std::move(rows)));
}
task<void> LiveModel::push(std::vector<LiveId> ids, LoDTensor rows, Limit deadline) const {
  return limited(deadline, push_many_unnamed(core_, std::move(ids), std::move(rows)));
}
task<std::optional<LiveBatch>> LiveModel::next(Limit deadline) const { return limited(deadline, next_of_all(core_)); }

}  // namespace millrace
