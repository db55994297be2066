// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/program_run.h>

#include <algorithm>

#include <fmt/format.h>

#include <millrace/runtime/program/internal/few.h>
#include <millrace/runtime/program/ops/array_ops.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/trace/tracer.h>

namespace millrace {
namespace {

/// In a handler: whether the task ends because a scope around it was cancelled. Then who waits for what it would have made is cancelled too, or
/// hears the cause from the op around it, and not that somebody else was cancelled.
bool is_cut_off(const TaskInfo& task) {
  if (!task.cancelled()) return false;
  try {
    throw;
  } catch (const CancelledError&) {
    return true;
  } catch (...) {
    return false;
  }
}

VarScope& up(VarScope& scope, int levels) {
  VarScope* at = &scope;
  for (; levels > 0; --levels) at = at->parent().get();
  return *at;
}

}  // namespace

/// For whom the work of an op is, for streams that keep it for later: "op matmul of block 1, iteration 3".
class ProgramRun::Origin final : public WorkOrigin {
 public:
  Origin(const ProgramRun& run, const CompiledOp& op, const VarScope& scope) noexcept : run_(run), op_(op), scope_(scope) {}
  std::string describe() const override { return run_.whose(op_, scope_); }

 private:
  const ProgramRun& run_;
  const CompiledOp& op_;
  const VarScope& scope_;
};

ProgramRun::ProgramRun(Executable executable, RunOptions options, std::shared_ptr<RunExchange> exchange)
    : executable_(std::move(executable)), options_(options), exchange_(std::move(exchange)) {
  if (options_.tracer != nullptr) add_tracks();
  const auto compiled = [this](std::size_t place) {
    const Op* op = &executable_.program().block(0).ops[place];
    const std::vector<CompiledOp>& all = executable_.block(0).ops;
    return &*std::find_if(all.begin(), all.end(), [op](const CompiledOp& each) { return each.op == op; });
  };
  for (std::size_t number = 0; number < executable_.loop_groups().size(); ++number) {
    const LoopGroup& group = executable_.loop_groups()[number];
    std::vector<std::shared_ptr<Companion>>& led = led_by_[compiled(group[0])];
    std::vector<std::set<VarId>> inputs(group.size());
    if (exchange_ != nullptr) inputs = inputs_beyond_first(executable_.program(), group);
    for (std::size_t i = 1; i < group.size(); ++i) {
      const CompiledOp* op = compiled(group[i]);
      const auto companion = std::make_shared<Companion>(op, executable_.behind_groups()[number]);
      companion->late = (!led.empty() && led.back()->late) || any_arrives(inputs[i]);
      if (!led.empty()) companion->before = led.back();
      companions_[op] = companion;
      led.push_back(companion);
    }
  }
}

// ---- Values ----

/// The value, or null while it is under way.
const Value* ProgramRun::find(const Source& source, VarScope& scope) const {
  if (source.up == Source::constant) return &executable_.constant(source.index);
  return up(scope, source.up).find(source.index);
}

ProgramRun::PendingValue ProgramRun::pending(const Source& source, const ScopePtr& scope) const {
  if (const Value* value = find(source, *scope)) return {*value, nullptr, 0, nullptr};
  auto [at, index] = up(*scope, source.up).origin(source.index);
  return {{}, std::move(at), index, &var_name(source.var)};
}

/// Sets a var of `to` now, or as soon as the value is there.
void ProgramRun::deliver(PendingValue from, const ScopePtr& to, std::size_t index, Scope& tasks) {
  if (from.scope == nullptr) return to->set(index, std::move(from.value));
  if (from.scope->has(from.index)) return to->set(index, from.scope->get(from.index));
  std::string name = "carried " + *from.name;
  tasks.spawn(forward(std::move(from), to, index), std::move(name));
}

task<void> ProgramRun::forward(PendingValue from, ScopePtr to, std::size_t index) {
  TaskInfo& me = co_await this_task::info();
  try {
    co_await from.scope->gate(from.index, *from.name).wait();
  } catch (...) {
    if (!is_cut_off(me)) to->fail(index, *from.name, std::current_exception());
    throw;
  }
  to->set(index, from.scope->get(from.index));
}

/// A boolean of one element, awaited and read on the host.
task<bool> ProgramRun::truth(PendingValue condition, std::string what) {
  if (condition.scope != nullptr) {
    co_await condition.scope->gate(condition.index, *condition.name).wait();
    condition.value = condition.scope->get(condition.index);
  }
  const Point point = condition.value.tensor().ready();
  co_await ready(point);
  co_return known_truth(condition.value, what);
}

bool ProgramRun::is_known(const Value& condition) { return condition.tensor().ready().reached(); }

bool ProgramRun::known_truth(const Value& condition, std::string_view what) {
  const Tensor& tensor = condition.tensor().tensor();
  if (tensor.dtype() != DType::boolean || tensor.elements() != 1)
    throw ShapeError(fmt::format("{}: expected a boolean of one element, found {}", what, tensor.to_string()));
  if (tensor.host_accessible()) return *tensor.data<bool>();
  return *tensor.copy_to(CpuPlace{}).data<bool>();
}

// ---- One op ----

std::size_t ProgramRun::stream_index(const CompiledOp& op, const VarScope& scope) const {
  const VarScope* step = scope.step();
  return op.stream + (step == nullptr ? 0 : static_cast<std::size_t>(step->iteration()));
}

StreamRef ProgramRun::stream(const CompiledOp& op, const VarScope& scope) const {
  return op.on_host ? executable_.host_stream() : executable_.device().stream(stream_index(op, scope));
}

bool ProgramRun::inputs_ready(const CompiledOp& op, VarScope& scope) const {
  for (const Source& input : op.inputs)
    if (input.var != no_var && find(input, scope) == nullptr) return false;
  for (const std::size_t host : op.def->host_inputs) {
    if (host >= op.inputs.size() || op.inputs[host].var == no_var) continue;
    if (!find(op.inputs[host], scope)->tensor().ready().reached()) return false;
  }
  return true;
}

bool ProgramRun::may_wait(const CompiledOp& op, VarScope& scope) const {
  if (op.kind != Executable::Kind::task) return op.kind != Executable::Kind::kernel;
  Few<const Value*, 8> inputs(op.inputs.size());
  for (std::size_t i = 0; i < op.inputs.size(); ++i) inputs[i] = op.inputs[i].var == no_var ? nullptr : find(op.inputs[i], scope);
  return may_suspend(OpContext(*op.op, inputs.span(), {}, stream(op, scope)));
}

std::string ProgramRun::where(const CompiledOp& op, const VarScope& scope) const { return " (" + whose(op, scope) + ")"; }

std::string ProgramRun::whose(const CompiledOp& op, const VarScope& scope) const {
  std::string text = describe(*op.op, scope.block());
  int block = scope.block();
  for (const VarScope* step = scope.step(); step != nullptr; step = step->parent()->step()) {
    text += fmt::format(", iteration {}", step->iteration());
    if (step->block() != block) text += fmt::format(" of block {}", step->block());
    block = step->block();
  }
  return text;
}

void ProgramRun::run_kernel(const CompiledOp& op, VarScope& scope) {
  Few<const Value*, 8> inputs(op.inputs.size());
  Few<Value, 3> outputs(op.outputs.size());
  Few<Value, 3> there(op.copies_inputs ? op.inputs.size() : 0);
  const Origin origin(*this, op, scope);
  const StreamRef on(stream(op, scope), origin);
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    inputs[i] = op.inputs[i].var == no_var ? nullptr : find(op.inputs[i], scope);
    if (op.copies_inputs) inputs[i] = input_in_place(op, i, inputs[i], on, there[i]);
  }
  OpContext context(*op.op, inputs.span(), outputs.span(), on);
  try {
    const TraceSpan span(options_.tracer, "op", op.op->type, track(op, scope), scope.iteration());
    op.kernel(context);
    finish_outputs(op, scope, inputs.span(), outputs.span());
  } catch (Error& error) {
    error.add_context(where(op, scope));
    throw;
  }
}

/// Outputs with as many rows as the input that carries LoD carry it too; then they are values of the scope.
void ProgramRun::finish_outputs(const CompiledOp& op, VarScope& scope, std::span<const Value* const> inputs,
                                std::span<Value> outputs) const {
  pass_lod(op, inputs, outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) scope.set(op.outputs[i], std::move(outputs[i]));
}

/// Awaited by who holds `run`.
task<void> ProgramRun::run_task_op(ProgramRun* run, const CompiledOp* op, ScopePtr scope) {
  std::vector<const Value*> inputs;
  std::vector<Value> there(op->inputs.size());
  const Origin origin(*run, *op, *scope);
  const StreamRef on(run->stream(*op, *scope), origin);
  for (const Source& input : op->inputs) {
    const std::size_t at = inputs.size();
    inputs.push_back(input.var == no_var ? nullptr : run->find(input, *scope));
    if (op->copies_inputs) inputs[at] = input_in_place(*op, at, inputs[at], on, there[at]);
  }
  std::vector<Value> outputs(op->outputs.size());
  OpContext context(*op->op, inputs, outputs, on);
  try {
    const TraceSpan span(run->options_.tracer, "op", op->op->type, run->track(*op, *scope), scope->iteration());
    co_await op->run_task(context);
    run->finish_outputs(*op, *scope, inputs, outputs);
    if (run->options_.tracer != nullptr && op->def->stores) run->trace_store(*op, inputs);
  } catch (Error& error) {
    error.add_context(run->where(*op, *scope));
    throw;
  }
}

task<void> ProgramRun::await_inputs(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope) {
  for (const Source& input : op->inputs) {
    if (input.var == no_var || run->find(input, *scope) != nullptr) continue;
    // Held here: by the time this task goes on, a link to that scope may be gone.
    const ScopePtr origin = up(*scope, input.up).origin(input.index).first;
    co_await up(*scope, input.up).gate(input.index, run->var_name(input.var)).wait();
  }
  for (const std::size_t host : op->def->host_inputs) {
    if (host >= op->inputs.size() || op->inputs[host].var == no_var) continue;
    const Point point = run->find(op->inputs[host], *scope)->tensor().ready();
    co_await ready(point);
  }
}

task<void> ProgramRun::do_op(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope) {
  switch (op->kind) {
    case Executable::Kind::while_loop: co_await run_while(run, op, scope); break;
    case Executable::Kind::branch: co_await run_branch(run, op, scope); break;
    case Executable::Kind::task: co_await run_task_op(run.get(), op, scope); break;
    default: run->run_kernel(*op, *scope);
  }
}

/// An op as a task of its own: waits for what it reads and for those that append before it, and says so to whoever waits for what it makes.
task<void> ProgramRun::run_op(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope, HeldWriters held,
                              std::vector<GatePtr> before, GatePtr done) {
  TaskInfo& me = co_await this_task::info();
  for (auto& [last, writer] : held.writers) writer.bind(me);
  try {
    for (const GatePtr& gate : before) co_await gate->wait();
    // Loops and branches take what is under way along.
    if (op->kind == Executable::Kind::kernel || op->kind == Executable::Kind::task) co_await await_inputs(run, op, scope);
    co_await do_op(run, op, scope);
  } catch (...) {
    if (!is_cut_off(me)) run->fail_outputs(*op, *scope, std::current_exception());
    if (done != nullptr && !is_cut_off(me)) done->fail(std::current_exception());
    throw;
  }
  if (done != nullptr) done->open();
}

void ProgramRun::fail_outputs(const CompiledOp& op, VarScope& scope, const std::exception_ptr& error) const {
  for (std::size_t i = 0; i < op.outputs.size(); ++i)
    if (!scope.has(op.outputs[i])) scope.fail(op.outputs[i], var_name(op.op->outputs[i]), error);
}

// ---- The trace ----

void ProgramRun::add_tracks() {
  const Program& program = executable_.program();
  for (const Block& block : program.blocks())
    loop_tracks_.push_back(
        options_.tracer->add_track(block.idx == 0 ? program.title() : fmt::format("{}, block {}", program.title(), block.idx)));
  stream_tracks_.push_back(options_.tracer->add_track("ops on the host"));
  for (std::size_t i = 0; i < executable_.device().stream_count(); ++i)
    stream_tracks_.push_back(options_.tracer->add_track(fmt::format("ops on stream {}", i)));
}

std::uint64_t ProgramRun::track(const CompiledOp& op, const VarScope& scope) const {
  if (stream_tracks_.empty()) return 0;
  return stream_tracks_[op.on_host ? 0 : 1 + stream_index(op, scope) % (stream_tracks_.size() - 1)];
}

/// A slot was written: it is issued now, and ready when its stream has come so far.
void ProgramRun::trace_store(const CompiledOp& op, std::span<const Value* const> inputs) {
  const TensorArray& array = inputs[op.def->stores->first]->array();
  const bool named = op.def->host_inputs.size() == 1;
  const std::int64_t index = named ? inputs[op.def->host_inputs[0]]->tensor().tensor().item_int() : array.size() - 1;
  std::string slot = fmt::format("{}[{}]", array.name(), index);
  const std::uint64_t row = options_.tracer->add_track("slots of " + array.name());
  options_.tracer->instant("slot", slot + " issued", row, index);
  const Point ready_at = inputs[op.def->stores->second]->tensor().ready();
  if (ready_at.reached()) return options_.tracer->instant("slot", slot + " ready", row, index);
  whole_->spawn(trace_ready(shared_from_this(), ready_at, slot, index), slot + " to be ready");
}

task<void> ProgramRun::trace_ready(std::shared_ptr<ProgramRun> run, Point ready_at, std::string slot, std::int64_t index) {
  co_await ready(ready_at);
  Tracer& tracer = *run->options_.tracer;
  tracer.instant("slot", slot + " ready", tracer.add_track("slots of " + slot.substr(0, slot.rfind('['))), index);
}

}  // namespace millrace
