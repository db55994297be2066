// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_program.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/start_run.h>
#include <millrace/runtime/task/this_task.h>

namespace millrace {
namespace {

void check_window(const char* option, std::int64_t slots) {
  if (slots < 0) throw ArgumentError(fmt::format("live program, {}: expected at least 0 slots, found {}", option, slots));
}

/// The value of slot `index` once its elements are there, also left in `value`; nothing at the end of the array. A slot that no task can write any more is the
/// end, unless the run failed.
task<std::optional<LoDTensor>> value_of(TensorArray array, std::int64_t index, std::optional<LoDTensor>* value, Point ended) {
  if (!*value) {
    bool there = false;
    try {
      SlotHas has = array.has(index);
      there = co_await has;
    } catch (const NeverWrittenError&) {
      if (index < array.size()) throw;
    }
    if (!there) {
      co_await ready(ended);
      co_return std::nullopt;
    }
    SlotRead read = array.read(index);
    SlotValue found = co_await read;
    value->emplace(std::move(found));  // a copy might find no memory, and the array has it no more
  }
  const Point point = (*value)->ready();
  co_await ready(point);
  std::optional<LoDTensor> made = *value;
  co_return std::move(made);
}

}  // namespace

class LiveProgram::State {
 public:
  State(Runtime& on, const Program& program, LiveProgramOptions how) : executor(on.executor()), options(std::move(how)) {
    check_window("window", options.window);
    check_window("output_window", options.output_window);
    for (const Program::Port& port : program.inputs()) add(program, port.var);
    if (arrays.empty()) throw ArgumentError("live program: expected an input that is an array and is not fed from the start, found none");
  }

  /// Slots by index, each with its value where that was taken from the array already.
  using Slots = std::map<std::int64_t, std::optional<LoDTensor>>;

  /// An open array, and how far it has been read.
  struct Open {
    TensorArray array;
    std::optional<ArrayWriter> feeder{};  // of a live input
    std::int64_t next = 0;
    Slots returned{};  // slots whose reader was cancelled or found no memory: the next calls read them first
    bool written = false;
    std::optional<int> levels{};  // of LoD, where the program declares what a slot of a live input is
  };

  /// The slot of one call of `next`. It goes back to the array's `returned`, unless its value was given.
  class Reading {
   public:
    explicit Reading(State& state, Open& open) : state_(state), open_(open) {
      const std::lock_guard lock(state_.mutex);
      if (open_.returned.empty()) {
        open_.returned.emplace(open_.next, std::nullopt);
        ++open_.next;
      }
      slot_ = open_.returned.extract(open_.returned.begin());
    }
    ~Reading() {
      if (given_) return;
      const std::lock_guard lock(state_.mutex);
      open_.returned.insert(std::move(slot_));
    }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;
    std::int64_t index() const { return slot_.key(); }
    std::optional<LoDTensor>& value() { return slot_.mapped(); }
    void give() noexcept { given_ = true; }

   private:
    State& state_;
    Open& open_;
    Slots::node_type slot_;
    bool given_ = false;
  };

  Open& named(const std::string& name, bool written) {
    const auto found = arrays.find(name);
    if (found != arrays.end() && found->second.written == written) return found->second;
    std::string known;
    for (const auto& [other, open] : arrays)
      if (open.written == written) known += (known.empty() ? "" : ", ") + other;
    throw ArgumentError(
        fmt::format("live program: expected one of its {} ({}), found '{}'", written ? "output arrays" : "live inputs", known, name));
  }

  /// Until `finish` the run is not at rest: rows come from outside.
  void hold(Run& of) {
    const std::lock_guard lock(mutex);
    if (!finished) rows.emplace(of);
  }
  void finish() {
    std::optional<ExternalHold> last;
    const std::lock_guard lock(mutex);
    finished = true;
    for (auto& [name, open] : arrays) {
      if (open.written) continue;
      if (!ended) open.array.close();  // an input of a run that has ended says why it did
      open.feeder.reset();
    }
    last.swap(rows);
  }

  /// The run has ended: the live inputs refuse further slots, the output arrays get none.
  void over(const std::exception_ptr& error) {
    const std::lock_guard lock(mutex);
    ended = true;
    failure = error;
    for (auto& [name, open] : arrays) {
      if (open.written && error == nullptr)
        open.array.close();
      else
        open.array.fail(error != nullptr ? error : std::make_exception_ptr(ClosedError("live program: the run has ended")));
      open.feeder.reset();
    }
  }

  static task<void> turn(std::shared_ptr<State> state, Executable executable) {
    TaskInfo& me = co_await this_task::info();
    std::optional<ExternalHold> room;  // somebody outside makes it
    if (state->options.output_window > 0) room.emplace(me.run());
    state->hold(me.run());
    std::exception_ptr error;
    try {
      Feeds feeds = state->options.feeds;
      for (const auto& [name, open] : state->arrays) feeds.insert_or_assign(name, Value(open.array));
      task<RunResult> running = run(std::move(executable), std::move(feeds), state->options.run);
      RunResult made = co_await std::move(running);
      state->result.emplace(std::move(made));
    } catch (...) {
      error = std::current_exception();
    }
    state->over(error);  // before the inputs close, so that a push throws the error of the run
    state->finish();
    if (error != nullptr) std::rethrow_exception(error);
  }

  /// Waits for one slot, beside whatever run writes or reads the array. An input that `finish` closed before the run failed says why it did as well.
  static task<void> push_slot(std::shared_ptr<State> state, const Open* open, LoDTensor slot) {
    co_await this_task::checkpoint();
    if (open->levels && slot.lod().depth() != *open->levels)
      throw LoDError(fmt::format("live program, '{}': expected a slot with {} levels of LoD, found {}", open->array.name(), *open->levels,
                                 slot.to_string()));
    TaskInfo& me = co_await this_task::info();
    const ExternalHold hold(me.run());
    try {
      SlotWrite written = open->array.append(std::move(slot));
      if (!written.placed()) co_await written;
    } catch (const ClosedError&) {
      std::exception_ptr why;
      {
        const std::lock_guard lock(state->mutex);
        why = state->failure;
      }
      if (why != nullptr) std::rethrow_exception(why);
      throw;
    }
  }

  /// Gives the next slot of an output array. When it is cancelled or runs out of memory, the call behind it reads the same slot.
  static task<std::optional<LoDTensor>> read_next(std::shared_ptr<State> state, Open* open, Point ended) {
    TaskInfo& me = co_await this_task::info();
    const ExternalHold hold(me.run());
    Reading reading(*state, *open);
    std::optional<LoDTensor> made;
    try {
      task<std::optional<LoDTensor>> work = value_of(open->array, reading.index(), &reading.value(), ended);
      std::optional<LoDTensor> value = co_await std::move(work);
      made = std::move(value);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (...) {
      if (!me.cancelled()) reading.give();
      throw;
    }
    if (made) reading.give();
    co_return std::move(made);
  }

  Executor& executor;
  const LiveProgramOptions options;
  std::map<std::string, Open> arrays;
  std::mutex mutex;
  std::optional<ExternalHold> rows;
  bool finished = false;
  bool ended = false;
  std::exception_ptr failure;
  std::optional<RunResult> result;
  std::optional<Running<void>> running;

 private:
  void add(const Program& program, VarId id) {
    const auto& var = program.var(id);
    if (!var.type.is_array() || options.feeds.count(var.name) > 0) return;
    bool written = false;
    for (const Block& block : program.blocks())
      for (const Op& op : block.ops)
        written = written || ((op.type == "tensor_array_write" || op.type == "tensor_array_append") && op.inputs.at(0) == id);
    const std::int64_t window = written ? options.output_window : options.window;
    Open open{(window > 0 ? TensorArray::window(window) : TensorArray::growable()).named(var.name)};
    open.written = written;
    if (!written && !var.type.open && var.type.shape) open.array.of(var.type.dtype, *var.type.shape);
    if (!written && !var.type.open) open.levels = var.type.lod_depth;
    if (!written) open.feeder.emplace(open.array.feeder("who feeds '" + var.name + "'"));
    arrays.emplace(var.name, std::move(open));
  }
};

LiveProgram::LiveProgram(Runtime& runtime, Program program, LiveProgramOptions options)
    : means_(runtime.means()), state_(std::make_shared<State>(runtime, program, std::move(options))) {
  Executable executable = runtime.compile(std::move(program));
  state_->running.emplace(start_run(runtime.executor(), State::turn(state_, std::move(executable)), "live program", runtime.tracer()));
}

LiveProgram::~LiveProgram() {
  cancel();  // before the inputs close, which the program would take for the end of its rows
  finish();
  state_->running.reset();
}

Executor& LiveProgram::executor() const { return state_->executor; }
void LiveProgram::cancel() const noexcept { state_->running->cancel(); }

task<void> LiveProgram::push(std::string input, LoDTensor slot) const {
  return State::push_slot(state_, &state_->named(input, false), std::move(slot));
}

void LiveProgram::finish() const { state_->finish(); }

task<std::optional<LoDTensor>> LiveProgram::next(std::string output) const {
  State::Open& open = state_->named(output, true);
  return State::read_next(state_, &open, state_->running->point());
}

namespace {

task<RunResult> result_at(Point ended, std::shared_ptr<const std::optional<RunResult>> made) {
  co_await ready(ended);
  co_return **made;
}

}  // namespace

task<RunResult> LiveProgram::result() const {
  return result_at(state_->running->point(), std::shared_ptr<const std::optional<RunResult>>(state_, &state_->result));
}

}  // namespace millrace
