// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/program_run.h>

#include <array>
#include <deque>

#include <fmt/format.h>

#include <millrace/runtime/ops/array_ops.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/trace/tracer.h>

namespace millrace {
namespace {

/// Room for the inputs or outputs of an op: on the stack for nearly all of them.
template <class T, std::size_t Small>
class Few {
 public:
  explicit Few(std::size_t count) : count_(count) {
    if (count > Small) many_.resize(count);
  }
  T* data() noexcept { return count_ > Small ? many_.data() : few_.data(); }
  T& operator[](std::size_t i) noexcept { return data()[i]; }
  std::span<T> span() noexcept { return {data(), count_}; }

 private:
  std::size_t count_;
  std::array<T, Small> few_{};
  std::vector<T> many_;
};

VarScope& up(VarScope& scope, int levels) {
  VarScope* at = &scope;
  for (; levels > 0; --levels) at = at->parent().get();
  return *at;
}

}  // namespace

ProgramRun::ProgramRun(Executable executable, RunOptions options) : executable_(std::move(executable)), options_(options) {}

// ---- Values ----

/// The value, or null while it is under way.
const Value* ProgramRun::find(const Source& source, VarScope& scope) const {
  if (source.up == Source::constant) return &executable_.constant(source.index);
  VarScope& at = up(scope, source.up);
  return at.has(source.index) ? &at.get(source.index) : nullptr;
}

ProgramRun::Promised ProgramRun::promised(const Source& source, const ScopePtr& scope) const {
  if (const Value* value = find(source, *scope)) return {*value, nullptr, 0, {}};
  ScopePtr at = scope;
  for (int levels = source.up; levels > 0; --levels) at = at->parent();
  return {{}, at, source.index, var_name(source.var)};
}

/// Sets a var of `to` now, or as soon as the value is there.
void ProgramRun::deliver(Promised from, const ScopePtr& to, std::size_t index, Scope& tasks) {
  if (from.scope == nullptr) return to->set(index, std::move(from.value));
  if (from.scope->has(from.index)) return to->set(index, from.scope->get(from.index));
  std::string name = "carried " + from.name;
  tasks.spawn(forward(std::move(from), to, index), std::move(name));
}

task<void> ProgramRun::forward(Promised from, ScopePtr to, std::size_t index) {
  try {
    co_await from.scope->gate(from.index, from.name).wait();
  } catch (...) {
    to->fail(index, from.name, std::current_exception());
    throw;
  }
  to->set(index, from.scope->get(from.index));
}

/// A boolean of one element, awaited and read on the host.
task<bool> ProgramRun::truth(std::shared_ptr<ProgramRun>, Promised condition, std::string what) {
  if (condition.scope != nullptr) {
    co_await condition.scope->gate(condition.index, condition.name).wait();
    condition.value = condition.scope->get(condition.index);
  }
  const Tensor& tensor = condition.value.tensor().tensor();
  if (tensor.dtype() != DType::boolean || tensor.elements() != 1)
    throw ShapeError(what + ": expected a boolean of one element, found " + tensor.to_string());
  const Point point = tensor.ready();
  co_await ready(point);
  co_return *tensor.data<bool>();
}

// ---- One op ----

StreamRef ProgramRun::stream(const CompiledOp& op, const VarScope& scope) const {
  if (op.on_host) return executable_.host_stream();
  const std::size_t turn = scope.turn() > 0 ? static_cast<std::size_t>(scope.turn()) : 0;
  return executable_.device().stream(op.stream + turn);
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

std::string ProgramRun::where(const CompiledOp& op, const VarScope& scope) const {
  std::string text = fmt::format(" (op {} of block {}", op.op->type, scope.block());
  if (!op.op->label.empty()) text += fmt::format(", '{}'", op.op->label);
  if (scope.turn() >= 0) text += fmt::format(", turn {}", scope.turn());
  return text + ")";
}

void ProgramRun::run_kernel(const CompiledOp& op, VarScope& scope) {
  Few<const Value*, 8> inputs(op.inputs.size());
  Few<Value, 3> outputs(op.outputs.size());
  for (std::size_t i = 0; i < op.inputs.size(); ++i) inputs[i] = op.inputs[i].var == no_var ? nullptr : find(op.inputs[i], scope);
  OpContext context(*op.op, inputs.span(), outputs.span(), stream(op, scope));
  try {
    const TraceSpan span(options_.tracer, "op", op.op->type, 0, scope.turn());
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
  const LoDTensor* carrier = nullptr;
  if (op.passes_lod) {
    for (const Value* input : inputs) {
      if (input == nullptr || !input->is_tensor() || input->tensor().lod().depth() == 0) continue;
      if (carrier != nullptr && !(carrier->lod() == input->tensor().lod()))
        throw LoDError(fmt::format("two inputs of different LoD: {} and {}", carrier->to_string(), input->tensor().to_string()));
      carrier = &input->tensor();
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Value& value = outputs[i];
    if (carrier != nullptr && value.is_tensor() && value.tensor().lod().depth() == 0 && value.tensor().dims().rank() > 0 &&
        value.tensor().rows() == carrier->rows())
      value = LoDTensor(value.tensor().tensor(), carrier->lod());
    scope.set(op.outputs[i], std::move(value));
  }
}

task<void> ProgramRun::run_task_op(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope) {
  std::vector<const Value*> inputs;
  for (const Source& input : op->inputs) inputs.push_back(input.var == no_var ? nullptr : run->find(input, *scope));
  std::vector<Value> outputs(op->outputs.size());
  OpContext context(*op->op, inputs, outputs, run->stream(*op, *scope));
  try {
    const TraceSpan span(run->options_.tracer, "op", op->op->type, 0, scope->turn());
    co_await op->run_task(context);
    run->finish_outputs(*op, *scope, inputs, outputs);
  } catch (Error& error) {
    error.add_context(run->where(*op, *scope));
    throw;
  }
}

task<void> ProgramRun::await_inputs(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope) {
  for (const Source& input : op->inputs) {
    if (input.var == no_var || run->find(input, *scope) != nullptr) continue;
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
    case Executable::Kind::task: co_await run_task_op(run, op, scope); break;
    default: run->run_kernel(*op, *scope);
  }
}

/// An op as a task of its own: waits for what it reads, and says so to whoever waits for what it makes.
task<void> ProgramRun::run_op(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope, HeldWriters held) {
  TaskInfo& me = co_await this_task::info();
  for (auto& [last, writer] : held.writers) writer.bind(me);
  try {
    co_await await_inputs(run, op, scope);
    co_await do_op(run, op, scope);
  } catch (...) {
    run->fail_outputs(*op, *scope, std::current_exception());
    throw;
  }
}

void ProgramRun::fail_outputs(const CompiledOp& op, VarScope& scope, const std::exception_ptr& error) const {
  for (std::size_t i = 0; i < op.outputs.size(); ++i)
    if (!scope.has(op.outputs[i])) scope.fail(op.outputs[i], var_name(op.op->outputs[i]), error);
}

// ---- Blocks ----

void ProgramRun::HeldWriters::release_after(std::size_t op) {
  std::erase_if(writers, [op](const auto& held) { return held.first <= op; });
}

/// Registers the calling task as a writer of the arrays that `block` writes and that are known in `scope`, which lies `above` scopes above the block's.
ProgramRun::HeldWriters ProgramRun::hold_writers(const CompiledBlock& block, VarScope& scope, TaskInfo& task, int above) const {
  HeldWriters held;
  for (const auto& written : block.written) {
    Source source = written.array;
    source.up -= above;
    if (source.up < 0) continue;
    if (const Value* array = find(source, scope)) held.writers.emplace_back(written.last_op, array->array().writer(task, task.name()));
  }
  return held;
}

/// Starts the ops of a block in order. What can run at once runs here; what has to wait becomes a task, and so do loops and branches.
task<void> ProgramRun::walk(std::shared_ptr<ProgramRun> run, const CompiledBlock* block, ScopePtr scope, EndPtr end, Scope* ops) {
  TaskInfo& me = co_await this_task::info();
  HeldWriters held;
  bool spawned = run->options_.keep_step_scopes;
  for (std::size_t i = 0; i < block->ops.size(); ++i) {
    const CompiledOp& op = block->ops[i];
    if (op.kind == Executable::Kind::break_if) {
      Promised condition = run->promised(op.inputs[0], scope);
      end->broke = co_await truth(run, std::move(condition), "break_if");
      if (!end->broke) continue;
      for (std::size_t k = 1; k < op.inputs.size(); ++k) end->results.push_back(run->promised(op.inputs[k], scope));
      co_return;
    }
    if (!run->inputs_ready(op, *scope) || run->may_wait(op, *scope)) {
      HeldWriters own;
      if (op.sub_block >= 0) own = run->hold_writers(run->executable_.block(op.sub_block), *scope, me, 1);
      if (op.else_block >= 0) {
        HeldWriters more = run->hold_writers(run->executable_.block(op.else_block), *scope, me, 1);
        for (auto& writer : more.writers) own.writers.push_back(std::move(writer));
      }
      if (op.def->stores) {
        const Source& array = op.inputs[op.def->stores->first];
        if (const Value* value = run->find(array, *scope)) own.writers.emplace_back(i, value->array().writer(me, me.name()));
      }
      std::string name = op.op->outputs.empty() ? op.op->type : run->var_name(op.op->outputs[0]);
      if (scope->turn() >= 0) name = fmt::format("{}, {}", name, me.name());
      ops->spawn(run_op(run, &op, scope, std::move(own)), std::move(name));
      spawned = true;
    } else if (op.kind == Executable::Kind::task) {
      co_await run_task_op(run, &op, scope);
    } else {
      run->run_kernel(op, *scope);
    }
    // An array that was just made gets its writers: this block, until the last op that may write it has been started.
    for (const auto& written : block->written) {
      if (written.array.up != 0 || written.last_op <= i || !scope->has(written.array.index)) continue;
      bool known = false;
      for (const std::size_t output : op.outputs) known = known || output == written.array.index;
      if (known) held.writers.emplace_back(written.last_op, scope->get(written.array.index).array().writer(me, me.name()));
    }
    held.release_after(i);
    if (!spawned)
      for (const std::size_t dead : op.last_uses) scope->drop(dead);
  }
  for (const Source& result : block->results) end->results.push_back(run->promised(result, scope));
}

task<void> ProgramRun::run_block(std::shared_ptr<ProgramRun> run, const CompiledBlock* block, ScopePtr scope, EndPtr end) {
  TaskInfo& me = co_await this_task::info();
  const bool iteration = scope->turn() >= 0;
  const TraceSpan span(run->options_.tracer, iteration ? "iteration" : "block", me.name(), static_cast<std::uint64_t>(block->block->idx),
                       scope->turn());
  Scope ops(me);
  std::exception_ptr failed;
  try {
    co_await walk(run, block, scope, end, &ops);
  } catch (...) {
    failed = std::current_exception();
  }
  if (failed != nullptr) {
    ops.fail(failed);
    ops.cancel();
    end->walked.fail(failed);
  } else {
    end->walked.open();
  }
  co_await ops.join();
}

// ---- Loops and branches ----

ProgramRun::ScopePtr ProgramRun::turn_scope(const ScopePtr& parent, const CompiledBlock& block, std::int64_t turn) {
  ScopePtr scope = parent->new_child(block.vars, block.block->idx, turn);
  if (turn < 0) return scope;
  ++result_.turns;
  if (options_.keep_step_scopes) result_.step_scopes_.push_back(scope);
  return scope;
}

task<void> ProgramRun::run_turns(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope, Scope* turns,
                                 std::vector<Promised>* carried) {
  const CompiledBlock& body = run->executable_.block(op->sub_block);
  const Attributes& attributes = op->op->attributes;
  const std::int64_t max_trips = attributes.get_or<std::int64_t>("max_trips", -1);
  const std::int64_t condition = attributes.get_or<std::int64_t>("condition", -1);
  const auto parallel = static_cast<std::size_t>(attributes.get_or<std::int64_t>("parallel_iterations", 8));
  const std::string name = op->op->outputs.empty() ? fmt::format("while {}", op->sub_block)
                                                   : fmt::format("while {} ({})", op->sub_block, run->var_name(op->op->outputs[0]));
  std::deque<Spawned<void>> under_way;
  for (std::int64_t turn = 0; max_trips < 0 || turn < max_trips; ++turn) {
    co_await this_task::checkpoint();
    if (condition >= 0) {
      Promised again = (*carried)[static_cast<std::size_t>(condition)];
      const bool go_on = co_await truth(run, std::move(again), name);
      if (!go_on) co_return;
    }
    ScopePtr step = run->turn_scope(scope, body, turn);
    for (std::size_t i = 0; i < carried->size(); ++i) run->deliver(std::move((*carried)[i]), step, body.params[i], *turns);
    std::string turn_name = fmt::format("{} turn {}", name, turn);
    auto end = std::make_shared<BlockEnd>("the ops of " + turn_name);
    under_way.push_back(turns->start(run_block(run, &body, step, end), std::move(turn_name)));
    co_await end->walked.wait();
    *carried = std::move(end->results);
    if (end->broke) co_return;
    while (under_way.size() >= parallel) {
      const Spawned<void> oldest = std::move(under_way.front());
      under_way.pop_front();
      co_await oldest;
    }
  }
}

task<void> ProgramRun::run_while(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope) {
  TaskInfo& me = co_await this_task::info();
  Scope turns(me);
  std::vector<Promised> carried;
  for (const Source& input : op->inputs) carried.push_back(run->promised(input, scope));
  std::exception_ptr failed;
  try {
    co_await run_turns(run, op, scope, &turns, &carried);
    for (std::size_t i = 0; i < op->outputs.size(); ++i) run->deliver(std::move(carried[i]), scope, op->outputs[i], turns);
  } catch (...) {
    failed = std::current_exception();
  }
  if (failed != nullptr) {
    turns.fail(failed);
    turns.cancel();
  }
  co_await turns.join();
}

task<void> ProgramRun::run_branch(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope) {
  Promised condition = run->promised(op->inputs[0], scope);
  const bool chosen = co_await truth(run, std::move(condition), "if");
  const CompiledBlock& block = run->executable_.block(chosen ? op->sub_block : op->else_block);
  TaskInfo& me = co_await this_task::info();
  ScopePtr inside = run->turn_scope(scope, block, -1);
  auto end = std::make_shared<BlockEnd>(chosen ? "the ops of a then branch" : "the ops of an else branch");
  co_await run_block(run, &block, inside, end);
  Scope rest(me);
  for (std::size_t i = 0; i < op->outputs.size(); ++i) run->deliver(std::move(end->results[i]), scope, op->outputs[i], rest);
  co_await rest.join();
}

task<void> ProgramRun::run_on(Executor& executor) {
  TaskInfo& me = co_await this_task::info();
  const std::shared_ptr<Strand> strand = executor.serial() ? nullptr : Strand::on(executor);
  Scope scope(me);
  auto end = std::make_shared<BlockEnd>("the ops of the program");
  const CompiledBlock* block = &executable_.block(0);
  std::string name = executable_.program().title();
  scope.spawn_on(strand ? static_cast<Executor&>(*strand) : executor, run_block(shared_from_this(), block, root_, end), std::move(name));
  co_await scope.join();
}

}  // namespace millrace
