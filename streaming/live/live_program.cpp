// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_program.h>

#include <algorithm>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/start_run.h>
#include <millrace/runtime/task/this_task.h>

namespace millrace {

class LiveProgram::State {
 public:
  State(Runtime& on, const Program& program, LiveProgramOptions how) : runtime(on), options(std::move(how)) {
    for (const Program::Port& port : program.inputs()) add(program, port.var);
    if (arrays.empty()) throw ArgumentError("live program: expected an input that is an array and is not fed from the start, found none");
  }

  /// An open array, and how far it has been read.
  struct Open {
    TensorArray array;
    std::optional<ArrayWriter> feeder{};  // of a live input
    std::int64_t next = 0;
    bool written = false;
  };

  const Open& named(const std::string& name, bool written) {
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
      open.array.close();
      open.feeder.reset();
    }
    last.swap(rows);
  }

  /// Nobody reads what is left any more, and nobody says anything.
  void over(const std::exception_ptr& error) {
    const std::lock_guard lock(mutex);
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
    state->finish();
    state->over(error);
    if (error != nullptr) std::rethrow_exception(error);
  }

  Runtime& runtime;
  const LiveProgramOptions options;
  std::map<std::string, Open> arrays;
  std::mutex mutex;
  std::optional<ExternalHold> rows;
  bool finished = false;
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
    if (!written) open.feeder.emplace(open.array.feeder("who feeds '" + var.name + "'"));
    arrays.emplace(var.name, std::move(open));
  }
};

namespace {

/// Waits for one slot, beside whatever run writes or reads the array.
task<void> push_slot(TensorArray array, LoDTensor slot) {
  TaskInfo& me = co_await this_task::info();
  const ExternalHold hold(me.run());
  SlotWrite written = array.append(std::move(slot));
  if (array.is_window()) co_await written;
}

/// A slot that nobody can write any more is the end, unless the run failed.
task<std::optional<LoDTensor>> read_slot(TensorArray array, std::int64_t index, Point ended) {
  TaskInfo& me = co_await this_task::info();
  const ExternalHold hold(me.run());
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
  SlotValue value = co_await read;
  LoDTensor made = value;
  const Point point = made.ready();
  co_await ready(point);
  co_return std::optional<LoDTensor>(std::move(made));
}

}  // namespace

LiveProgram::LiveProgram(Runtime& runtime, Program program, LiveProgramOptions options)
    : state_(std::make_shared<State>(runtime, program, std::move(options))) {
  Executable executable = runtime.compile(std::move(program));
  state_->running.emplace(start_run(runtime.executor(), State::turn(state_, std::move(executable)), "live program", runtime.tracer()));
}

LiveProgram::~LiveProgram() {
  finish();
  cancel();
  state_->running.reset();
}

Executor& LiveProgram::executor() const { return state_->runtime.executor(); }
void LiveProgram::cancel() const noexcept { state_->running->cancel(); }

task<void> LiveProgram::push(std::string input, LoDTensor slot) const {
  return push_slot(state_->named(input, false).array, std::move(slot));
}

void LiveProgram::finish() const { state_->finish(); }

task<std::optional<LoDTensor>> LiveProgram::next(std::string output) const {
  state_->named(output, true);
  const std::lock_guard lock(state_->mutex);
  State::Open& open = state_->arrays.at(output);
  return read_slot(open.array, open.next++, state_->running->point());
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
