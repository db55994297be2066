// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/block_walker.h>

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/executor/kept_memory.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/kernel_floats.h>
#include <millrace/tensor/pool.h>
#include <millrace/tensor/spill_memory.h>

namespace millrace {

// ---- Blocks ----

void BlockWalker::HeldWriters::release_after(std::size_t op) {
  std::erase_if(writers, [op](const auto& held) { return held.first <= op; });
}

void BlockWalker::HeldWriters::add(HeldWriters more) {
  for (auto& writer : more.writers) writers.push_back(std::move(writer));
}

/// Registers `task`, for a task `name` that it is about to start, as a writer of the arrays that `block` writes and that are known in
/// `scope`, its parent. An array without a held writer was made too late for that: it is left to the run, which finds at rest that
/// no task can write it.
BlockWalker::HeldWriters BlockWalker::hold_writers(const CompiledBlock& block, VarScope& scope, TaskInfo& task,
                                                   const std::string& name) const {
  HeldWriters held;
  for (const auto& written : block.written) {
    ValueSource source = written.array;
    if (--source.up < 0) continue;
    const Value* array = state_->find(source, scope);
    if (array != nullptr && array->array().has_writers()) held.writers.emplace_back(written.last_op, array->array().writer(task, name));
  }
  return held;
}

/// Registers the writers of an op that is about to become a task: the arrays that it writes, itself or in its blocks.
BlockWalker::HeldWriters BlockWalker::hold_for(const CompiledOp& op, VarScope& scope, TaskInfo& task, const std::string& name) const {
  HeldWriters held;
  for (const int block : {op.sub_block, op.else_block})
    if (block >= 0) held.add(hold_writers(state_->compiled().block(block), scope, task, name));
  for (const ValueSource& maker : op.stores_to) {
    const Value* array = state_->find(maker, scope);
    if (array != nullptr && array->array().has_writers()) held.writers.emplace_back(0, array->array().writer(task, name));
  }
  return held;
}

/// Arrays that were just made (or fed) get their writer: the run of their block, until the last op that may write them has been started.
void BlockWalker::hold_made(HeldWriters& held, const CompiledBlock& block, std::span<const std::size_t> made, VarScope& scope,
                            TaskInfo& task) const {
  for (const auto& written : block.written) {
    if (written.array.up != 0 || std::find(made.begin(), made.end(), written.array.index) == made.end()) continue;
    const Value* array = scope.find(written.array.index);
    if (array != nullptr) held.writers.emplace_back(written.last_op, array->array().writer(task, task.name()));
  }
}

bool BlockWalker::appends_under_way(const CompiledOp& op, const BlockEnd& end) {
  return std::any_of(op.appends.begin(), op.appends.end(),
                     [&](std::size_t at) { return end.appends[at] != nullptr && !end.appends[at]->is_open(); });
}

void BlockWalker::spawn_op(const CompiledOp& op, const ScopePtr& scope, BlockEnd& end, Scope& ops, TaskInfo& task) {
  std::string name = op.name;
  if (scope->step() != nullptr) name = fmt::format("{}, {}", name, task.name());
  std::vector<GatePtr> before;
  GatePtr done = op.appends.empty() ? nullptr : std::make_shared<Gate>(fmt::format("what task '{}' appends", name));
  for (const std::size_t at : op.appends) {
    GatePtr last = std::exchange(end.appends[at], done);
    if (last != nullptr) before.push_back(std::move(last));
  }
  HeldWriters held = hold_for(op, *scope, task, name);
  ops.spawn(run_op(shared_from_this(), &op, scope, std::move(held), std::move(before), std::move(done)), std::move(name));
}

/// Past the body's test: the iteration is an iteration.
void BlockWalker::begin_iteration(const ScopePtr& scope, BlockEnd& end) {
  end.iteration = true;
  if (scope->iteration() < 0) return;
  state_->count_iteration(scope);
}

/// Adds the results of the block. Values of a scope that nobody else holds are moved.
void BlockWalker::add_results(const CompiledBlock& block, const ScopePtr& scope, BlockEnd& end) const {
  const bool moves = scope.use_count() == 1;
  for (std::size_t i = 0; i < block.results.size(); ++i) {
    const ValueSource& result = block.results[i];
    if (moves && block.last_of_var[i] && scope->has(result.index))
      end.results.push_back({scope->take(result.index), nullptr, 0, nullptr});
    else
      end.results.push_back(state_->pending(result, scope));
  }
}

/// Whether an op cannot run to its end now.
bool BlockWalker::needs_task(const CompiledOp& op, VarScope& scope, const BlockEnd& end) const {
  return !ops_->inputs_ready(op, scope) || ops_->may_wait(op, scope) || appends_under_way(op, end);
}

/// Starts the ops of a block in order, from `end->next` on. An op that can run at once runs here; one that has to wait becomes a task of `ops`, and so
/// do loops and branches. Without `ops` it stops before the first that has to wait, and says false. The caller that awaits it holds the arguments.
task<bool> BlockWalker::walk(BlockWalker* walker, const CompiledBlock* block, const ScopePtr* held_scope, BlockEnd* end, Scope* ops) {
  TaskInfo& me = co_await this_task::info();
  const ScopePtr& scope = *held_scope;
  HeldWriters held;
  if (ops != nullptr) walker->hold_made(held, *block, block->inputs, *scope, me);
  for (std::size_t before = 0; ops != nullptr && before < end->next; ++before) {
    if (block->ops[before].makes_written) walker->hold_made(held, *block, block->ops[before].outputs, *scope, me);
    held.release_after(before);
  }
  end->appends.resize(block->appended.size());
  bool keep = walker->state_->options().keep_step_scopes;  // tasks of the block may still read its vars
  for (std::size_t& i = end->next; i < block->ops.size(); ++i) {
    const CompiledOp& op = block->ops[i];
    me.check_goes_on();
    if (i == block->test && !end->iteration) walker->begin_iteration(scope, *end);
    if (op.kind == CompiledOp::Kind::break_if) {
      const Value* condition = walker->state_->find(op.inputs[0], *scope);
      bool breaks = false;
      if (condition != nullptr && is_known(*condition)) {
        breaks = known_truth(*condition, op.op->type);
      } else if (ops == nullptr) {
        co_return false;
      } else {
        PendingValue later = walker->state_->pending(op.inputs[0], scope);
        breaks = co_await truth(std::move(later), op.op->type);
      }
      if (!breaks) continue;
      walker->end_by_break(op, scope, *end);
      co_return true;
    }
    const bool long_loop = end->tried == i && op.kind == CompiledOp::Kind::while_loop;
    if (!long_loop && walker->run_at_once(*block, i, scope, *end)) {
      // The op has run, and its outputs are there.
    } else if (op.group != nullptr && !walker->ops_->runs_as_group(op, *scope)) {
      if (ops == nullptr) co_return false;
      keep |= walker->start_members(op, scope, *end, *ops, me);
    } else if (walker->needs_task(op, *scope, *end)) {
      if (ops == nullptr) co_return false;
      walker->spawn_op(op, scope, *end, *ops, me);
      keep = true;
    } else {
      co_await walker->ops_->run_task(&op, scope);
    }
    if (ops != nullptr && op.makes_written) walker->hold_made(held, *block, op.outputs, *scope, me);
    if (!held.writers.empty()) held.release_after(i);
    if (!keep)
      for (const std::size_t dead : op.last_uses) scope->drop(dead);
  }
  if (block->test == block->ops.size() && !end->iteration) walker->begin_iteration(scope, *end);
  walker->add_results(*block, scope, *end);
  co_return true;
}

/// Runs the op at `place` where it needs no task and nothing to be awaited. False: nothing was changed.
bool BlockWalker::run_at_once(const CompiledBlock& block, std::size_t place, const ScopePtr& scope, const BlockEnd& end) {
  const CompiledOp& op = block.ops[place];
  if (op.group != nullptr && !ops_->runs_as_group(op, *scope)) return false;
  if (op.kind == CompiledOp::Kind::branch && walk_branch(op, scope)) return true;
  if (op.kind == CompiledOp::Kind::while_loop && !appends_under_way(op, end) && loops_->run_at_once(op, scope)) return true;
  if (needs_task(op, *scope, end)) return false;
  if (op.kind == CompiledOp::Kind::task) return ops_->run_now(op, *scope);
  if (block.block->idx == 0 && state_->extent_values() != nullptr && state_->compiled().extent_ops[place])
    ops_->run_extent_op(place, op, *scope);
  else
    ops_->run_kernel(op, *scope);
  return true;
}

bool BlockWalker::walk_at_once(const TaskInfo& task) {
  const KernelFloats floats;
  begun_ = make_pooled<BlockEnd>();
  if (walk_ready(state_->compiled().block(0), state_->root(), *begun_, task)) return true;
  begun_->tried = begun_->next;
  return false;
}

/// The break of a body, with the values that it hands out.
void BlockWalker::end_by_break(const CompiledOp& op, const ScopePtr& scope, BlockEnd& end) const {
  end.broke = true;
  for (std::size_t k = 1; k < op.inputs.size(); ++k) end.results.push_back(state_->pending(op.inputs[k], scope));
}

/// Runs the ops of a block in the caller, from `end.next` on. False: the op at `end.next` has to wait or to be awaited, and has not begun.
bool BlockWalker::walk_ready(const CompiledBlock& block, const ScopePtr& scope, BlockEnd& end, const TaskInfo& task) {
  end.appends.resize(block.appended.size());
  const bool keep = state_->options().keep_step_scopes;
  for (std::size_t& i = end.next; i < block.ops.size(); ++i) {
    const CompiledOp& op = block.ops[i];
    task.check_goes_on();
    if (i == block.test && !end.iteration) begin_iteration(scope, end);
    if (op.kind == CompiledOp::Kind::break_if) {
      const Value* condition = state_->find(op.inputs[0], *scope);
      if (condition == nullptr || !is_known(*condition)) return false;
      if (!known_truth(*condition, op.op->type)) continue;
      end_by_break(op, scope, end);
      return true;
    }
    if (!run_at_once(block, i, scope, end)) return false;
    if (keep) continue;
    for (const std::size_t dead : op.last_uses) scope->drop(dead);
  }
  if (block.test == block.ops.size() && !end.iteration) begin_iteration(scope, end);
  add_results(block, scope, end);
  return true;
}

/// Starts the ops of a group one by one. Whether one of them became a task.
bool BlockWalker::start_members(const CompiledOp& op, const ScopePtr& scope, BlockEnd& end, Scope& ops, TaskInfo& task) {
  bool waits = false;
  for (const CompiledOp& member : op.members) {
    if (needs_task(member, *scope, end)) {
      spawn_op(member, scope, end, ops, task);
      waits = true;
    } else {
      ops_->run_kernel(member, *scope);
    }
  }
  return waits;
}

/// A branch of plain blocks, whose condition and values are there, runs here. False: it has to wait, and nothing was changed.
bool BlockWalker::walk_branch(const CompiledOp& op, const ScopePtr& scope) {
  if (state_->options().tracer != nullptr) return false;
  const Value* condition = state_->find(op.inputs[0], *scope);
  if (condition == nullptr || !is_known(*condition)) return false;
  const int chosen = known_truth(*condition, "if") ? op.sub_block : op.else_block;
  if (!state_->compiled().block(chosen).plain) return false;
  const CompiledBlock& block = state_->block(chosen);
  spare_.resize(state_->compiled().blocks.size());
  ScopePtr& spare = spare_[static_cast<std::size_t>(chosen)];
  const ScopePtr inside = spare != nullptr ? std::move(spare) : scope->new_child(block.vars, chosen, -1);
  inside->enter(scope);
  if (!walk_plain(block, inside)) return false;
  for (const ValueSource& result : block.results)
    if (state_->find(result, *inside) == nullptr) return false;
  for (std::size_t i = 0; i < op.outputs.size(); ++i) scope->set(op.outputs[i], *state_->find(block.results[i], *inside));
  inside->leave();
  spare_[static_cast<std::size_t>(chosen)] = inside;
  return true;
}

/// Runs the ops of a plain block. False: one of them has to wait.
bool BlockWalker::walk_plain(const CompiledBlock& block, const ScopePtr& scope) {
  const BlockEnd none;
  for (const CompiledOp& op : block.ops) {
    if (op.kind == CompiledOp::Kind::branch) {
      if (!walk_branch(op, scope)) return false;
    } else if (op.group != nullptr && !ops_->runs_as_group(op, *scope)) {
      for (const CompiledOp& member : op.members) {
        if (needs_task(member, *scope, none)) return false;
        ops_->run_kernel(member, *scope);
      }
    } else {
      if (needs_task(op, *scope, none)) return false;
      ops_->run_kernel(op, *scope);
    }
    for (const std::size_t dead : op.last_uses) scope->drop(dead);
  }
  return true;
}

task<void> BlockWalker::run_block(std::shared_ptr<BlockWalker> walker, const CompiledBlock* block, ScopePtr scope, EndPtr end) {
  TaskInfo& me = co_await this_task::info();
  TraceSpan span(walker->state_->options().tracer, scope->iteration() >= 0 ? "iteration" : "block", me.name(),
                 static_cast<std::uint64_t>(block->block->idx), scope->iteration());
  Scope ops(me);
  std::exception_ptr failed;
  try {
    co_await walk(walker.get(), block, &scope, end.get(), &ops);
  } catch (...) {
    failed = std::current_exception();
  }
  if (scope->iteration() >= 0 && !end->iteration) span.drop();
  if (failed != nullptr) {
    ops.fail(failed);
    ops.cancel();
  }
  if (end->walked && failed != nullptr) end->walked->fail(failed);
  if (end->walked && failed == nullptr) end->walked->open();
  co_await ops.join();
}

// ---- Ops as tasks ----

task<void> BlockWalker::do_op(std::shared_ptr<BlockWalker> walker, const CompiledOp* op, ScopePtr scope) {
  switch (op->kind) {
    case CompiledOp::Kind::while_loop: co_await run_while(walker, op, scope); break;
    case CompiledOp::Kind::branch: co_await run_branch(walker, op, scope); break;
    case CompiledOp::Kind::task: co_await walker->ops_->run_task(op, scope); break;
    default: walker->ops_->run_kernel(*op, *scope);
  }
}

/// An op as a task of its own: waits for its inputs and for the ops that append before it, and tells the waiters for its outputs.
task<void> BlockWalker::run_op(std::shared_ptr<BlockWalker> walker, const CompiledOp* op, ScopePtr scope, HeldWriters held,
                               std::vector<GatePtr> before, GatePtr done) {
  TaskInfo& me = co_await this_task::info();
  for (auto& [last, writer] : held.writers) writer.bind(me);
  try {
    for (const GatePtr& gate : before) co_await gate->wait();
    // Loops and branches take pending values along.
    if (op->kind == CompiledOp::Kind::kernel || op->kind == CompiledOp::Kind::task)
      co_await OpRunner::await_inputs(walker->ops_, op, scope);
    co_await do_op(walker, op, scope);
  } catch (...) {
    if (!is_cut_off(me)) walker->ops_->fail_outputs(*op, *scope, std::current_exception());
    if (done != nullptr && !is_cut_off(me)) done->fail(std::current_exception());
    throw;
  }
  if (done != nullptr) done->open();
}

// ---- Loops and branches ----

namespace {

/// Turns that a loop on the host gives other tasks, for each op of its body, so that an iteration under way may end before the next begins. Iterations that wait
/// for something else than ready tasks use them up, and overlap from then on.
constexpr std::size_t turns_of_op = 64;

/// Iterations that wait for nothing, between two turns of other tasks.
constexpr int iterations_of_turn = 32;

/// ", iteration 2 of while 1": the iterations of outer loops that a scope lies in.
std::string enclosing_iterations(const VarScope& scope) {
  std::string text;
  for (const VarScope* step = scope.step(); step != nullptr; step = step->parent()->step())
    text += fmt::format(", iteration {} of while {}", step->iteration(), step->block());
  return text;
}

}  // namespace

/// An iteration needs no task of its own as long as nothing in it waits, nobody looks at its task in a trace, and no array has it as a writer.
bool BlockWalker::may_walk_at_once(const CompiledBlock& body) const {
  const auto made_here = [](const CompiledBlock::Written& written) { return written.array.up == 0; };
  return state_->options().tracer == nullptr && std::none_of(body.written.begin(), body.written.end(), made_here);
}

/// The scope of the next iteration: that of the one before, when it left no task behind.
void BlockWalker::next_step(ScopePtr& step, const ScopePtr& outer, const CompiledBlock& body, std::int64_t iteration) {
  if (step != nullptr && step.use_count() == 1)
    step->begin_iteration(iteration);
  else
    step = outer->new_child(body.vars, body.block->idx, iteration);
}

/// Whether a carried condition is there, so that nothing waits for it.
bool BlockWalker::is_there(const PendingValue& condition) { return condition.scope == nullptr && is_known(condition.value); }

/// Whether the carried condition asks for another iteration.
task<bool> BlockWalker::goes_on(const PendingValue* condition, const std::string* loop) {
  if (is_there(*condition)) co_return known_truth(condition->value, *loop);
  PendingValue later = *condition;
  const bool again = co_await truth(std::move(later), *loop);
  co_return again;
}

/// Waits until fewer than `most` iterations are under way, and hears of those that have ended.
task<void> BlockWalker::take_ended(std::deque<Spawned<void>>* under_way, std::size_t most) {
  while (!under_way->empty() && (under_way->size() >= most || under_way->front().ended())) {
    const Spawned<void> oldest = std::move(under_way->front());
    under_way->pop_front();
    co_await oldest;
  }
}

/// A loop that is interpreted, between two iterations or within one.
struct BlockWalker::Iterations {
  const CompiledBlock& body;
  const ScopePtr& outer;
  const std::string& name;
  std::int64_t max_trips, condition;   ///< as the attributes say; -1: none
  std::vector<PendingValue>* carried;  ///< between iterations
  std::int64_t iteration;
  ScopePtr step = nullptr;               ///< of the iteration
  EndPtr end = make_pooled<BlockEnd>();  ///< of the iteration

  bool is_last() const { return max_trips >= 0 && iteration >= max_trips; }
  const PendingValue* test() const { return condition < 0 ? nullptr : &(*carried)[static_cast<std::size_t>(condition)]; }
  void begin() {
    next_step(step, outer, body, iteration);
    for (std::size_t i = 0; i < carried->size(); ++i) set_or_link(std::move((*carried)[i]), *step, body.params[i]);
  }
  /// Goes to the next iteration: the results of the one that has ended become the carried values.
  void go_on() {
    carried->swap(end->results);
    end->begin_again();
    ++iteration;
  }
};

/// Walks iterations in the caller, one after the other, `most` of them or up to what has to wait.
BlockWalker::Stop BlockWalker::walk_iterations(Iterations& loop, int most, const TaskInfo& task) {
  const KernelFloats floats;
  for (; most > 0; --most) {
    task.check_goes_on();
    if (loop.is_last()) return Stop::ended;
    if (const PendingValue* const test = loop.test()) {
      if (!is_there(*test)) return Stop::at_condition;
      if (!known_truth(test->value, loop.name)) return Stop::ended;
    }
    loop.begin();
    if (!walk_ready(loop.body, loop.step, *loop.end, task)) {
      loop.end->tried = loop.end->next;
      return Stop::in_iteration;
    }
    const bool broke = loop.end->broke;
    loop.go_on();
    if (broke) return Stop::ended;
  }
  return Stop::at_turn;
}

task<void> BlockWalker::run_iterations(std::shared_ptr<BlockWalker> walker, const CompiledOp* op, ScopePtr scope, Scope* iterations,
                                       LoopStart* start) {
  TaskInfo& me = co_await this_task::info();
  const CompiledBlock& body = walker->state_->block(op->sub_block);
  const Attributes& attributes = op->op->attributes;
  const auto parallel = static_cast<std::size_t>(attributes.get_or<std::int64_t>("parallel_iterations", 8));
  const std::string within = enclosing_iterations(*scope);
  const bool at_once = walker->may_walk_at_once(body);
  Iterations loop{body,
                  scope,
                  op->name,
                  attributes.get_or<std::int64_t>("max_trips", -1),
                  attributes.get_or<std::int64_t>("condition", -1),
                  &start->carried,
                  start->iteration};
  std::deque<Spawned<void>> under_way;
  std::size_t turns = walker->state_->compiled().device->place().is_cpu() ? turns_of_op * body.ops.size() : 0;
  for (;;) {
    Stop stop = Stop::at_condition;
    if (at_once) {
      stop = walker->walk_iterations(loop, under_way.empty() ? iterations_of_turn : 1, me);
      if (stop == Stop::ended) co_return;
      if (stop == Stop::at_turn) {
        if (under_way.empty())
          co_await this_task::yield();
        else
          co_await take_ended(&under_way, parallel);
        continue;
      }
    }
    if (stop != Stop::in_iteration) {
      co_await this_task::checkpoint();
      if (loop.is_last()) co_return;
      if (const PendingValue* const test = loop.test()) {
        const bool again = co_await goes_on(test, &loop.name);
        if (!again) co_return;
      }
      loop.begin();
    }
    bool walked = false;
    if (at_once) walked = co_await walk(walker.get(), &body, &loop.step, loop.end.get(), nullptr);
    if (!walked) {
      std::string iteration_name = fmt::format("{} iteration {}{}", loop.name, loop.iteration, within);
      loop.end->walked.emplace("the ops of " + iteration_name);
      under_way.push_back(iterations->start(run_block(walker, &body, std::move(loop.step), loop.end), std::move(iteration_name)));
      co_await loop.end->walked->wait();
      // An iteration that ends first leaves the next one nothing to wait for: it needs no tasks.
      const std::size_t given = turns;
      for (; turns > 0 && !under_way.back().ended(); --turns) co_await this_task::yield();
      if (under_way.back().ended()) turns = given;
    }
    const bool broke = loop.end->broke;
    if (walked) {
      loop.go_on();
    } else {
      loop.carried->swap(loop.end->results);
      loop.end = make_pooled<BlockEnd>(std::move(loop.end->appends));
      ++loop.iteration;
    }
    if (broke) co_return;
    if (!under_way.empty()) co_await take_ended(&under_way, parallel);
  }
}

namespace {

/// Traces how many bytes the loop has left in the arrays of its kept values.
void trace_kept(const RunState& state, const CompiledOp& loop, VarScope& scope) {
  Tracer* const tracer = state.options().tracer;
  if (tracer == nullptr) return;
  std::set<const void*> counted;
  std::size_t memory = 0, files = 0;
  std::string policy;
  for (const CompiledOp& op : state.compiled().block(loop.sub_block).ops) {
    if (op.op->type != "tensor_array_write" || !op.op->attributes.has("kept")) continue;
    policy = op.op->attributes.get<std::string>("kept");
    ValueSource source = op.inputs[0];
    --source.up;
    const Value* const array = state.find(source, scope);
    if (array == nullptr || !array->is_array()) continue;
    for (std::int64_t i = 0; i < array->array().size(); ++i) {
      const std::optional<LoDTensor> slot = array->array().peek(i);
      if (!slot || !counted.insert(slot->tensor().storage().get()).second) continue;
      const Allocation& storage = *slot->tensor().storage();
      (dynamic_cast<const SpillMemory*>(&storage.resource()) != nullptr ? files : memory) += storage.bytes();
    }
  }
  if (policy.empty()) return;
  const std::string name = loop.name + " under " + policy;
  const std::uint64_t track = state.track(loop, scope);
  tracer->instant(KeptMemory::in_memory, name, track, static_cast<std::int64_t>(memory));
  if (files > 0) tracer->instant(KeptMemory::in_files, name, track, static_cast<std::int64_t>(files));
}

}  // namespace

task<void> BlockWalker::run_while(std::shared_ptr<BlockWalker> walker, const CompiledOp* op, ScopePtr scope) {
  const ConcurrentLoops::End end = walker->loops_->end_of(*op);
  LoopStart start;
  const bool done = co_await LoopRunner::run(walker->loops_, op, scope, &start);
  if (done) {
    trace_kept(*walker->state_, *op, *scope);
    co_return;
  }
  TaskInfo& me = co_await this_task::info();
  Scope iterations(me);
  if (start.iteration == 0)
    for (const ValueSource& input : op->inputs) start.carried.push_back(walker->state_->pending(input, scope));
  std::exception_ptr failed;
  try {
    co_await run_iterations(walker, op, scope, &iterations, &start);
    for (std::size_t i = 0; i < op->outputs.size(); ++i) deliver(std::move(start.carried[i]), scope, op->outputs[i], iterations);
  } catch (...) {
    failed = std::current_exception();
  }
  if (failed != nullptr) {
    iterations.fail(failed);
    iterations.cancel();
  }
  co_await iterations.join();
  if (failed == nullptr) trace_kept(*walker->state_, *op, *scope);
}

task<void> BlockWalker::run_branch(std::shared_ptr<BlockWalker> walker, const CompiledOp* op, ScopePtr scope) {
  PendingValue condition = walker->state_->pending(op->inputs[0], scope);
  const bool chosen = co_await truth(std::move(condition), "if");
  const CompiledBlock& block = walker->state_->block(chosen ? op->sub_block : op->else_block);
  TaskInfo& me = co_await this_task::info();
  ScopePtr inside = scope->new_child(block.vars, block.block->idx, -1);
  auto end = make_pooled<BlockEnd>();
  co_await run_block(walker, &block, inside, end);
  Scope rest(me);
  for (std::size_t i = 0; i < op->outputs.size(); ++i) deliver(std::move(end->results[i]), scope, op->outputs[i], rest);
  co_await rest.join();
}

task<void> BlockWalker::run_program(std::shared_ptr<BlockWalker> walker) {
  const EndPtr end = walker->begun_ != nullptr ? walker->begun_ : make_pooled<BlockEnd>();
  co_await run_block(walker, &walker->state_->compiled().block(0), walker->state_->root(), end);
}

}  // namespace millrace
