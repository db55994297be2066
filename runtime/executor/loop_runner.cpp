// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/loop_runner.h>

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include <millrace/runtime/executor/op_runner.h>
#include <millrace/runtime/loops/loop_backends.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/trace/tracer.h>

namespace millrace {

/// The values that a while op in `scope` finds outside.
class LoopRunner::Values final : public LoopValues {
 public:
  Values(const RunState& state, const RunPorts& ports, ScopePtr scope) : state_(state), ports_(ports), scope_(std::move(scope)) {}

  const Program& program() const override { return state_.program(); }
  const Value* find(VarId var) override { return state_.find(var, *scope_); }
  task<void> wait(VarId var) override { return state_.wait_for(var, scope_); }
  const PreparedOp* maker(VarId var) const override {
    const std::vector<CompiledOp>& ops = state_.compiled().block(0).ops;
    const auto makes = [var](const CompiledOp& op) { return std::count(op.op->outputs.begin(), op.op->outputs.end(), var) > 0; };
    const auto found = std::find_if(ops.begin(), ops.end(), makes);
    return found == ops.end() || !found->kernel ? nullptr : &*found;
  }
  StreamRef stream(const PreparedOp& op) const override { return state_.stream(static_cast<const CompiledOp&>(op), *scope_); }
  const StackedView* stacked_view(VarId var) const override { return state_.compiled().stacked_views.find(var); }
  bool arrives(VarId array) const override { return ports_.arrives(array); }
  bool leaves(VarId array) const override { return ports_.leaves(array); }

 private:
  const RunState& state_;
  const RunPorts& ports_;
  ScopePtr scope_;
};

namespace {

/// Whether the loop ends before its test says so.
bool ends_early(const CompiledOp& op, std::int64_t iterations) {
  const auto limit = op.op->attributes.get_or<std::int64_t>("max_trips", -1);
  return limit >= 0 && iterations > limit;
}

}  // namespace

LoopRunner::LoopRunner(std::shared_ptr<RunState> state, std::shared_ptr<RunPorts> ports)
    : state_(std::move(state)), ports_(std::move(ports)) {
  for (std::size_t number = 0; number < state_->compiled().loop_groups.size(); ++number) add_group(number);
}

void LoopRunner::add_group(std::size_t number) {
  const LoopGroup& group = state_->compiled().loop_groups[number];
  std::vector<const Op*> ops;
  for (const std::size_t at : group) ops.push_back(&state_->program().block(0).ops[at]);
  std::vector<bool> late(group.size(), false);
  if (ports_->exchanges()) {
    const std::vector<std::set<VarId>> inputs = inputs_beyond_first(state_->program(), group);
    for (std::size_t i = 0; i < group.size(); ++i) late[i] = ports_->any_arrives(inputs[i]);
  }
  groups_.add(ops, late, state_->compiled().behind_groups[number]);
}

/// A while op of block 0.
const CompiledOp& LoopRunner::compiled(const Op* op) const {
  const std::vector<CompiledOp>& all = state_->compiled().block(0).ops;
  return *std::find_if(all.begin(), all.end(), [op](const CompiledOp& each) { return each.op == op; });
}

bool LoopRunner::allows(Backend kind) const {
  const RunOptions& options = state_->options();
  if (options.backend == Backend::interpreted || options.keep_step_scopes) return false;
  if (options.backend != Backend::automatic) return options.backend == kind;
  return options.tracer == nullptr || !options.tracer->records();
}

/// The op itself may be the host's: it carries a count.
StreamRef LoopRunner::stream_of(const CompiledOp& op, const VarScope& scope, const LoopBackend& backend) const {
  return backend.on_host() ? state_->stream(op, scope) : state_->device().stream(op.stream);
}

/// Whether another rank waits for slots of the loop, or makes slots that it reads.
bool LoopRunner::passes_slots(const CompiledOp& op) {
  if (!ports_->exchanges()) return false;
  const auto fits = std::find_if(op.backends.begin(), op.backends.end(), [](const auto& each) { return each->form() != nullptr; });
  if (fits == op.backends.end()) return false;
  const LoopForm* const form = (*fits)->form();
  return std::any_of(form->inputs.begin(), form->inputs.end(), [&](const auto& input) { return ports_->arrives(input.array); }) ||
         std::any_of(form->outputs.begin(), form->outputs.end(), [&](const auto& output) { return ports_->leaves(output.array); });
}

task<bool> LoopRunner::run(std::shared_ptr<LoopRunner> loops, const CompiledOp* op, ScopePtr scope, LoopStart* start) {
  const ConcurrentLoops::Decision decision(loops->groups_.led_by(op->op));
  const Backend wanted = loops->state_->options().backend;
  std::string why;
  bool listed = false;
  for (const auto& backend : op->backends) {
    if (!loops->allows(backend->kind())) continue;
    listed = true;
    if (backend->form() == nullptr) {
      why = backend->reason();
      continue;
    }
    const bool done = co_await run_in(loops, backend.get(), op, scope, start, &why);
    if (done) co_return true;
    if (start->iteration > 0) break;
  }
  if (!listed && wanted != Backend::automatic && loops->allows(wanted)) why = no_backend(wanted, loops->state_->compiled().device->place());
  loops->note_interpreted(*op, *scope, why);
  co_return false;
}

/// Null when the operands do not fit.
task<std::unique_ptr<LoopRun>> LoopRunner::prepare(std::shared_ptr<LoopRunner> loops, LoopBackend* backend, const CompiledOp* op,
                                                   ScopePtr scope, ConcurrentRuns concurrent, std::string* why) {
  Values values(*loops->state_, *loops->ports_, scope);
  const StreamRef stream = loops->stream_of(*op, *scope, *backend);
  LoopOperands operands = co_await await_operands(backend, &values, concurrent, stream);
  if (operands.iterations <= 0) co_return nullptr;
  if (ends_early(*op, operands.iterations)) {
    *why = fmt::format("it is cut off after {} of {} iterations", op->op->attributes.get<std::int64_t>("max_trips"), operands.iterations);
    co_return nullptr;
  }
  co_return backend->prepare(std::move(operands), stream, *why);
}

/// Null where nothing has begun.
std::unique_ptr<LoopRun> LoopRunner::take_begun(const CompiledOp& op, const LoopBackend& backend) {
  if (begun_.op != op.op || begun_.backend != &backend) return nullptr;
  begun_.op = nullptr;
  return std::move(begun_.run);
}

/// False when the interpreter has to run the loop, or the rest of it.
task<bool> LoopRunner::run_in(std::shared_ptr<LoopRunner> loops, LoopBackend* backend, const CompiledOp* op, ScopePtr scope,
                              LoopStart* start, std::string* why) {
  if (const std::shared_ptr<LoopStage> stage = backend->on_host() ? loops->groups_.stage(op->op) : nullptr) {
    std::unique_ptr<LoopRun> taken = co_await ConcurrentLoops::taken_along(stage, true);
    if (taken != nullptr) {
      const bool whole = co_await finish(loops, backend, std::move(taken), op, scope, start);
      co_return whole;
    }
  }
  Prepared prepared{backend, {}, {op->op}};
  std::unique_ptr<LoopRun> first = loops->take_begun(*op, *backend);
  if (first == nullptr) first = co_await prepare(loops, backend, op, scope, {&prepared.runs, nullptr}, why);
  if (first == nullptr) co_return false;
  int threads = 1;
  if (backend->on_host()) threads = co_await team_size(loops->stream_of(*op, *scope, *backend));
  const auto& stages = loops->groups_.led_by(op->op);
  const auto late = std::find_if(stages.begin(), stages.end(), [](const auto& stage) { return stage->late; });
  bool together = backend->on_host() && (first->passes_slots() || backend->gains_from_others(*first, threads));
  for (auto stage = stages.begin(); backend->on_host() && stage != late; ++stage)
    together = together || loops->passes_slots(loops->compiled((*stage)->op));
  prepared.runs.push_back(std::move(first));
  for (auto stage = stages.begin(); together && stage != late; ++stage) {
    const CompiledOp* const other = &loops->compiled((*stage)->op);
    const auto fits = [backend](const auto& each) { return backend->runs_beside(*each) && each->form() != nullptr; };
    const auto of_other = std::find_if(other->backends.begin(), other->backends.end(), fits);
    if (of_other == other->backends.end()) continue;
    std::string reason;
    std::unique_ptr<LoopRun> next = co_await prepare(loops, of_other->get(), other, scope, {&prepared.runs, &(*stage)->behind}, &reason);
    if (next == nullptr) continue;
    prepared.runs.push_back(std::move(next));
    prepared.ops.push_back(other->op);
  }
  co_await run_prepared(loops, &prepared, threads, op, scope);
  for (const auto& stage : stages) {
    const auto at = std::find(prepared.ops.begin(), prepared.ops.end(), stage->op);
    if (at != prepared.ops.end()) stage->run = std::move(prepared.runs[static_cast<std::size_t>(at - prepared.ops.begin())]);
  }
  if (const std::string reason = prepared.runs[0]->reason(); !reason.empty()) *why = reason;
  const bool whole = co_await finish(loops, backend, std::move(prepared.runs[0]), op, scope, start);
  co_return whole;
}

/// The iterations of the prepared runs.
task<void> LoopRunner::run_prepared(std::shared_ptr<LoopRunner> loops, Prepared* prepared, int threads, const CompiledOp* op,
                                    ScopePtr scope) {
  RunState& state = *loops->state_;
  const auto count = static_cast<std::int64_t>(prepared->runs.size());
  const std::string& name = op->name;
  const std::string in_backend =
      state.options().tracer == nullptr
          ? std::string()
          : fmt::format("{}, {}{}", name, name_of(prepared->backend->kind()), count > 1 ? fmt::format(", {} concurrent loops", count) : "");
  const TraceSpan span(state.options().tracer, "loop", in_backend, state.track(*op, *scope), scope->iteration());
  if (count > 1) state.result().loops_side_by_side += count;
  std::vector<LoopRun*> runs;
  for (const auto& run : prepared->runs) runs.push_back(run.get());
  const std::unique_ptr<LoopStages> stages = prepared->backend->stages(std::move(runs), threads);
  LoopTrace trace{state.options().tracer, name, state.block_track(op->sub_block)};
  co_await run_stages(&prepared->runs, stages.get(), prepared->backend->on_host(), std::move(trace));
}

/// The results of a run become values of the program. False when it did not come to its end: the interpreter does the rest.
task<bool> LoopRunner::finish(std::shared_ptr<LoopRunner> loops, LoopBackend* backend, std::unique_ptr<LoopRun> given, const CompiledOp* op,
                              ScopePtr scope, LoopStart* start) {
  const std::shared_ptr<LoopRun> run = std::move(given);
  const std::int64_t done = run->iterations_done();
  if (done == 0) co_return false;
  std::vector<SlotValue> last = run->finish();
  loops->trace_slots(*run, op->name);
  Values values(*loops->state_, *loops->ports_, scope);
  co_await await_counters(&run->form(), op->op, &values);
  std::vector<Value> carried = carried_behind(run->form(), *op->op, values, std::move(last), done);
  if (done < run->iterations()) {
    loops->state_->result().iterations += done;
    for (Value& value : carried) start->carried.push_back({std::move(value), nullptr, 0, nullptr});
    start->iteration = done;
    co_return false;
  }
  loops->set_results(backend->kind(), *run, std::move(carried), *op, *scope);
  if (const std::optional<Point> end = run->end())
    loops->state_->whole->spawn(watch(run, *end), op->name + ", " + std::string(name_of(backend->kind())));
  co_return true;
}

/// Sets the outputs of a loop that ran to its end, and counts it.
void LoopRunner::set_results(Backend backend, const LoopRun& run, std::vector<Value> carried, const CompiledOp& op, VarScope& scope) {
  for (std::size_t i = 0; i < carried.size(); ++i) scope.set(op.outputs[i], std::move(carried[i]));
  RunResult& result = state_->result();
  result.iterations += run.iterations();
  // An iteration that ends behind other ops than its test is one, too.
  const bool another = state_->compiled().block(op.sub_block).test == 0;
  if (another && run.iterations() != op.op->attributes.get_or<std::int64_t>("max_trips", -1)) ++result.iterations;
  ++(backend == Backend::fused ? result.fused_loops : result.captured_loops);
}

bool LoopRunner::run_at_once(const CompiledOp& op, const ScopePtr& scope) {
  if (state_->options().tracer != nullptr || ports_->exchanges() || !groups_.may_start(op.op)) return false;
  const auto chosen = std::find_if(op.backends.begin(), op.backends.end(),
                                   [this](const auto& each) { return allows(each->kind()) && each->form() != nullptr; });
  if (chosen == op.backends.end() || !(*chosen)->on_host()) return false;
  LoopBackend& backend = **chosen;
  Values values(*state_, *ports_, scope);
  if (!has_counters(*backend.form(), *op.op, values)) return false;
  const StreamRef stream = stream_of(op, *scope, backend);
  const std::optional<int> threads = team_size_now(stream);
  if (!threads || (*threads > 1 && !groups_.led_by(op.op).empty())) return false;
  std::optional<LoopOperands> operands = OperandBinding(backend, values, {}, stream).bind();
  if (!operands || operands->iterations <= 0 || ends_early(op, operands->iterations)) return false;
  std::string why;
  std::unique_ptr<LoopRun> run = backend.prepare(std::move(*operands), stream, why);
  if (run == nullptr) return false;
  if (!run->brief()) {
    if (scope == state_->root()) begun_ = {op.op, &backend, std::move(run)};  // an op of an inner block may begin again, with other values
    return false;
  }
  const ConcurrentLoops::End end = end_of(op);
  const ConcurrentLoops::Decision decision(groups_.led_by(op.op));
  const std::unique_ptr<LoopStages> stages = backend.stages({run.get()}, *threads);
  while (stages->advance(std::numeric_limits<std::int64_t>::max())) {
  }
  stream.position().wait();  // reached, unless somebody else came onto the stream
  std::vector<SlotValue> last = run->finish();
  set_results(backend.kind(), *run, carried_behind(run->form(), *op.op, values, std::move(last), run->iterations()), op, *scope);
  return true;
}

/// Nobody awaits the end of a loop that goes on by itself; but a run that is given up takes it along, and one whose values nobody reads reports
/// its errors.
task<void> LoopRunner::watch(std::shared_ptr<LoopRun> run, Point end) {
  try {
    co_await ready(end);
  } catch (const CancelledError&) {
    run->cancel();
    throw;
  }
}

namespace {

/// The slots that a kernel writes are issued all at once, and ready as it comes to them.
task<void> trace_marked(std::shared_ptr<RunState> state, TensorArray array, LoopOperands::Slots slots, std::int64_t iterations) {
  const std::string name = array.name();
  for (std::int64_t iteration = 0; iteration < iterations; ++iteration) {
    const std::int64_t index = slots.first + slots.stride * iteration;
    const Point at = array.peek(index)->tensor().ready();
    co_await trace_ready(state, at, fmt::format("{}[{}]", name, index), index);
  }
}

}  // namespace

void LoopRunner::trace_slots(const LoopRun& run, const std::string& name) {
  const Tracer* const tracer = state_->options().tracer;
  if (tracer == nullptr || !tracer->records()) return;
  for (const auto& [array, slots] : run.marked_slots())
    state_->whole->spawn(trace_marked(state_, array, slots, run.iterations_done()),
                         fmt::format("slots of {} to be ready, of {}", array.name(), name));
}

/// The trace and the result say why a loop runs in the interpreter, if another backend was to be tried.
void LoopRunner::note_interpreted(const CompiledOp& op, const VarScope& scope, const std::string& why) {
  if (why.empty()) return;
  const RunOptions& options = state_->options();
  const std::string line = fmt::format("{} runs iteration by iteration, because {}", op.name, why);
  if (options.backend_required)
    throw UnsupportedError(fmt::format("backend {}: expected every loop to run so, but {}", name_of(options.backend), line));
  state_->result().iteration_by_iteration.insert(line);
  if (options.tracer != nullptr) options.tracer->instant("backend", line, state_->track(op, scope), scope.iteration());
}

}  // namespace millrace
