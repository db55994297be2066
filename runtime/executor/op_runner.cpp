// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/op_runner.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <millrace/runtime/program/internal/few.h>
#include <millrace/runtime/program/ops/array_ops.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/trace/tracer.h>

namespace millrace {
namespace {

/// The op where an error began says where. It reaches others through slots that it fails, and what they would add says nothing of the cause.
void add_origin(Error& error, const std::string& where) {
  if (std::string_view(error.what()).find(" (op ") == std::string_view::npos) error.add_context(where);
}

}  // namespace

bool OpRunner::inputs_ready(const CompiledOp& op, VarScope& scope) const {
  for (const ValueSource& input : op.inputs)
    if (input.var != no_var && state_->find(input, scope) == nullptr) return false;
  for (const std::size_t host : op.def->host_inputs) {
    if (host >= op.inputs.size() || op.inputs[host].var == no_var) continue;
    if (!state_->find(op.inputs[host], scope)->tensor().ready().reached()) return false;
  }
  return true;
}

bool OpRunner::may_wait(const CompiledOp& op, VarScope& scope) const {
  if (op.kind != CompiledOp::Kind::task) return op.kind != CompiledOp::Kind::kernel;
  Few<const Value*, 8> inputs(op.inputs.size());
  for (std::size_t i = 0; i < op.inputs.size(); ++i) inputs[i] = op.inputs[i].var == no_var ? nullptr : state_->find(op.inputs[i], scope);
  return may_suspend(OpContext(*op.op, inputs.span(), {}, state_->stream(op, scope)));
}

bool OpRunner::runs_as_group(const CompiledOp& op, VarScope& scope) const {
  Few<const Value*, 8> inputs(op.inputs.size());
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    inputs[i] = state_->find(op.inputs[i], scope);
    if (inputs[i] == nullptr) return false;
  }
  return op.group->fits(inputs.span());
}

task<void> OpRunner::await_inputs(std::shared_ptr<OpRunner> runner, const CompiledOp* op, ScopePtr scope) {
  const RunState& state = *runner->state_;
  for (const ValueSource& input : op->inputs) {
    if (input.var == no_var || state.find(input, *scope) != nullptr) continue;
    // Holds the scope of the origin: by the time this task goes on, a link to it may be gone.
    const PendingValue later = state.pending(input, scope);
    co_await later.scope->gate(later.index, *later.name).wait();
  }
  for (const std::size_t host : op->def->host_inputs) {
    if (host >= op->inputs.size() || op->inputs[host].var == no_var) continue;
    const Point point = state.find(op->inputs[host], *scope)->tensor().ready();
    co_await ready(point);
  }
}

/// `run(context)` says whether it has set the outputs.
template <class F>
bool OpRunner::launch(const CompiledOp& op, VarScope& scope, F run) const {
  Few<const Value*, 8> inputs(op.inputs.size());
  Few<Value, 3> outputs(op.outputs.size());
  std::vector<Value> copied(op.copies_inputs ? op.inputs.size() : 0);
  const OpOrigin origin(*state_, op, scope);
  const StreamRef stream(state_->stream(op, scope), origin);
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    inputs[i] = op.inputs[i].var == no_var ? nullptr : state_->find(op.inputs[i], scope);
    if (op.copies_inputs) inputs[i] = input_in_place(op, i, inputs[i], stream, copied[i]);
  }
  OpContext context(*op.op, inputs.span(), outputs.span(), stream);
  try {
    const TraceSpan span(state_->options().tracer, "op", op.op->type, state_->track(op, scope), scope.iteration());
    if (!run(context)) return false;
    set_outputs(op, scope, inputs.span(), outputs.span());
    return true;
  } catch (Error& error) {
    add_origin(error, where(op, scope));
    throw;
  }
}

void OpRunner::run_kernel(const CompiledOp& op, VarScope& scope) const {
  launch(op, scope, [&op](OpContext& context) {
    op.kernel(context);
    return true;
  });
}

bool OpRunner::run_now(const CompiledOp& op, VarScope& scope) const { return op.run_now != nullptr && launch(op, scope, op.run_now); }

void OpRunner::run_extent_op(std::size_t place, const CompiledOp& op, VarScope& scope) const {
  ExtentValues& values = *state_->extent_values();
  Few<const Value*, 8> inputs(op.inputs.size());
  for (std::size_t i = 0; i < op.inputs.size(); ++i) inputs[i] = op.inputs[i].var == no_var ? nullptr : state_->find(op.inputs[i], scope);
  std::span<const Value> outputs = values.recall(place, inputs.span());
  if (outputs.empty()) {
    run_kernel(op, scope);
    std::vector<Value> made;
    for (const std::size_t output : op.outputs) made.push_back(scope.get(output));
    outputs = values.keep(place, op, inputs.span(), made);
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) scope.set(op.outputs[i], outputs[i]);
}

void OpRunner::set_outputs(const CompiledOp& op, VarScope& scope, std::span<const Value* const> inputs, std::span<Value> outputs) const {
  finish_outputs(op, inputs, outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) scope.set(op.outputs[i], std::move(outputs[i]));
}

task<void> OpRunner::run_task(const CompiledOp* op, ScopePtr scope) {
  std::vector<const Value*> inputs;
  std::vector<Value> copied(op->inputs.size());
  const OpOrigin origin(*state_, *op, *scope);
  const StreamRef stream(state_->stream(*op, *scope), origin);
  for (const ValueSource& input : op->inputs) {
    const std::size_t at = inputs.size();
    inputs.push_back(input.var == no_var ? nullptr : state_->find(input, *scope));
    if (op->copies_inputs) inputs[at] = input_in_place(*op, at, inputs[at], stream, copied[at]);
  }
  std::vector<Value> outputs(op->outputs.size());
  OpContext context(*op->op, inputs, outputs, stream);
  try {
    const TraceSpan span(state_->options().tracer, "op", op->op->type, state_->track(*op, *scope), scope->iteration());
    co_await op->run_task(context);
    set_outputs(*op, *scope, inputs, outputs);
    if (state_->options().tracer != nullptr && op->def->stores) trace_store(*op, inputs);
  } catch (Error& error) {
    add_origin(error, where(*op, *scope));
    throw;
  }
}

void OpRunner::fail_outputs(const CompiledOp& op, VarScope& scope, const std::exception_ptr& error) const {
  for (std::size_t i = 0; i < op.outputs.size(); ++i)
    if (!scope.has(op.outputs[i])) scope.fail(op.outputs[i], state_->compiled().name_of(op.op->outputs[i]), error);
}

/// A slot was written: it is issued now, and ready when its stream has come so far.
void OpRunner::trace_store(const CompiledOp& op, std::span<const Value* const> inputs) {
  Tracer& tracer = *state_->options().tracer;
  const TensorArray& array = inputs[op.def->stores->first]->array();
  const bool named = op.def->host_inputs.size() == 1;
  const std::int64_t index = named ? inputs[op.def->host_inputs[0]]->tensor().tensor().item_int() : array.size() - 1;
  std::string slot = fmt::format("{}[{}]", array.name(), index);
  const std::uint64_t row = tracer.add_track("slots of " + array.name());
  tracer.instant("slot", slot + " issued", row, index);
  const Point ready_at = inputs[op.def->stores->second]->tensor().ready();
  if (ready_at.reached()) return tracer.instant("slot", slot + " ready", row, index);
  std::string name = slot + " to be ready";
  state_->whole->spawn(trace_ready(state_, ready_at, std::move(slot), index), std::move(name));
}

task<void> trace_ready(std::shared_ptr<RunState> state, Point ready_at, std::string slot, std::int64_t index) {
  co_await ready(ready_at);
  Tracer& tracer = *state->options().tracer;
  tracer.instant("slot", slot + " ready", tracer.add_track("slots of " + slot.substr(0, slot.rfind('['))), index);
}

}  // namespace millrace
