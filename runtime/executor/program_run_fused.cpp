// SPDX-License-Identifier: Apache-2.0
// How ProgramRun runs a loop in one piece.
#include <millrace/runtime/executor/program_run.h>

#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/trace/tracer.h>

namespace millrace {

/// The fused form of a loop, where this run may use one.
std::shared_ptr<const FusedLoop> ProgramRun::fused_form(const CompiledOp& op, const VarScope& scope) const {
  if (op.fused == nullptr || options_.gear == Gear::interpreted || options_.keep_step_scopes) return nullptr;
  if (options_.gear == Gear::automatic && options_.tracer != nullptr) return nullptr;
  if (!executable_.device().place().is_cpu()) return nullptr;
  return op.fused->get(executable_.program(), scope.block(), *op.op);
}

/// The value of a var that a block of `scope` sees, as soon as it is there.
task<Value> ProgramRun::value_of(std::shared_ptr<ProgramRun> run, VarId var, ScopePtr scope) {
  if (const Tensor* constant = run->executable_.program().constant(var)) co_return Value(*constant);
  const int block = run->executable_.program().var(var).block;
  while (scope->block() != block) scope = scope->parent();
  const std::size_t index = run->executable_.index_of(var);
  if (!scope->has(index)) {
    const ScopePtr origin = scope->origin(index).first;
    co_await scope->gate(index, run->var_name(var)).wait();
  }
  co_return scope->get(index);
}

task<std::int64_t> ProgramRun::integer_of(std::shared_ptr<ProgramRun> run, VarId var, ScopePtr scope) {
  const Value value = co_await value_of(run, var, std::move(scope));
  const Point point = value.tensor().ready();
  co_await ready(point);
  co_return value.tensor().tensor().item_int();
}

namespace {

/// What stands before slot 0, as the batch wants it; nothing when it does not fit: the loop says why, turn by turn.
std::optional<SlotValue> booted(const TensorArray& array, const SlotValue& boot, StreamRef stream) {
  if (!array.order()) return boot;
  try {
    return reorder(boot, *array.order(), stream);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

/// Everything a fused loop works on, awaited. What the loop reads was made before it, and nobody waits for what it writes: waiting is safe.
task<FusedOperands> ProgramRun::fused_operands(std::shared_ptr<ProgramRun> run, std::shared_ptr<const FusedLoop> loop, const CompiledOp* op,
                                               ScopePtr scope) {
  const LoopForm& form = loop->form();
  std::vector<std::int64_t> counters(form.carried.size());
  for (std::size_t i = 0; i < counters.size(); ++i)
    if (form.carried[i].counter) counters[i] = co_await integer_of(run, op->op->inputs[i], scope);
  const auto at = [&](const LoopForm::Index& index) { return counters[index.carried] + index.offset; };
  FusedOperands made;
  made.turns = co_await integer_of(run, form.stop, scope);
  made.turns -= at(form.stop_at);
  for (const LoopForm::StepInput& input : form.inputs) {
    const Value array = co_await value_of(run, input.array, scope);
    made.inputs.push_back(array.array());
    made.first_read.push_back(at(input.index));
  }
  for (const LoopForm::Output& output : form.outputs) {
    const Value array = co_await value_of(run, output.array, scope);
    made.outputs.push_back(array.array());
    made.first_written.push_back(at(output.index));
  }
  for (const LoopForm::State& state : form.states) {
    if (state.initial != no_var) {
      const Value value = co_await value_of(run, state.initial, scope);
      made.states.push_back(value.tensor());
      continue;
    }
    const Value array = co_await value_of(run, state.array, scope);
    const std::int64_t slot = at(state.index);
    if (slot == -1 && state.boot != no_var) {
      const Value boot = co_await value_of(run, state.boot, scope);
      std::optional<SlotValue> first = booted(array.array(), boot.tensor(), run->stream(*op, *scope));
      if (!first) made.turns = -1;
      if (!first) co_return made;
      made.states.push_back(std::move(*first));
    } else if (const std::optional<LoDTensor> held = array.array().peek(slot)) {
      made.states.emplace_back(*held);
    } else {
      made.turns = -1;  // reads what nothing wrote: the loop says so, turn by turn
      co_return made;
    }
  }
  for (const VarId var : form.shared) {
    const Value value = co_await value_of(run, var, scope);
    const Point point = value.tensor().ready();
    co_await ready(point);
    made.shared.push_back(value.tensor().tensor());
  }
  for (const SlotValue& state : made.states) {
    const Point point = state.ready();
    co_await ready(point);
  }
  co_return made;
}

namespace {

/// What is wrong with the values, the loop says better turn by turn.
std::unique_ptr<FusedRun> prepared(const std::shared_ptr<const FusedLoop>& loop, FusedOperands operands, int threads, StreamRef stream) {
  try {
    return FusedRun::prepare(loop, std::move(operands), threads, stream);
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

/// False when the loop has to run turn by turn after all.
task<bool> ProgramRun::run_fused(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope) {
  const std::shared_ptr<const FusedLoop> loop = run->fused_form(*op, *scope);
  if (loop == nullptr) co_return false;
  FusedOperands operands = co_await fused_operands(run, loop, op, scope);
  const std::int64_t limit = op->op->attributes.get_or<std::int64_t>("max_trips", -1);
  if (limit >= 0 && operands.turns > limit) co_return false;
  const StreamRef stream = run->stream(*op, *scope);
  const auto threads = std::make_shared<int>(1);
  stream.enqueue([threads](ThreadTeam& team) { *threads = team.size(); });
  const Point known = stream.position();
  co_await ready(known);
  const std::unique_ptr<FusedRun> fused = prepared(loop, std::move(operands), *threads, stream);
  if (fused == nullptr) co_return false;
  const TraceSpan span(run->options_.tracer, "loop", run->name_of(*op) + ", fused", run->track(*op, *scope), scope->turn());
  while (fused->advance(stream)) {
    // Another thread may be on the stream: then it runs the turns, later.
    const Point turned = stream.position();
    co_await ready(turned);
    co_await this_task::yield();  // timers, and other runs of the executor, get their turn
    co_await this_task::checkpoint();
  }
  const std::vector<SlotValue> last = fused->finish(stream);
  const LoopForm& form = loop->form();
  for (std::size_t i = 0; i < op->outputs.size(); ++i) {
    if (!form.carried[i].counter) {
      scope->set(op->outputs[i], last[form.carried[i].state]);
      continue;
    }
    const std::int64_t begin = co_await integer_of(run, op->op->inputs[i], scope);
    const Tensor count = Tensor::scalar<std::int64_t>(begin + fused->turns());
    const DType dtype = run->executable_.program().var(op->op->outputs[i]).type.dtype;
    scope->set(op->outputs[i], Value(dtype == DType::i32 ? Tensor::scalar(static_cast<std::int32_t>(begin + fused->turns())) : count));
  }
  run->result_.turns += fused->turns();
  ++run->result_.fused_loops;
  co_return true;
}

}  // namespace millrace
