// SPDX-License-Identifier: Apache-2.0
// How ProgramRun runs a loop in one piece.
#include <millrace/runtime/executor/program_run.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/fill.h>
#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/loops/cpu_fused/wavefront.h>
#include <millrace/runtime/lowering/internal/loop_numbers.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/trace/tracer.h>

namespace millrace {

/// Whether loops of this run may run otherwise than iteration by iteration.
bool ProgramRun::one_piece() const {
  if (options_.backend == Backend::interpreted || options_.keep_step_scopes) return false;
  return options_.backend != Backend::automatic || options_.tracer == nullptr || !options_.tracer->records();
}

/// The fused form of a loop, where this run may use one.
std::shared_ptr<const FusedLoop> ProgramRun::fused_form(const CompiledOp& op, const VarScope& scope) {
  if (op.fused == nullptr || !one_piece() || options_.backend == Backend::captured) return nullptr;
  if (!executable_.device().place().is_cpu()) {
    if (options_.backend == Backend::fused) why_[&op] = "there are no fused kernels for " + executable_.device().place().to_string();
    return nullptr;
  }
  std::shared_ptr<const FusedLoop> form = op.fused->get(executable_.program(), scope.block(), *op.op);
  if (form == nullptr) why_[&op] = op.fused->reason();
  return form;
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

namespace {

/// A number that a loop counts by may be a device's: an extent, or what a loop around it computes.
std::int64_t number_in(const Tensor& made) { return (made.host_accessible() ? made : made.copy_to(CpuPlace{})).item_int(); }

}  // namespace

task<std::int64_t> ProgramRun::integer_of(std::shared_ptr<ProgramRun> run, VarId var, ScopePtr scope) {
  const Value value = co_await value_of(run, var, std::move(scope));
  const Point point = value.tensor().ready();
  co_await ready(point);
  co_return number_in(value.tensor().tensor());
}

namespace {

/// What stands before slot 0, as the batch wants it; nothing when it does not fit: the loop says why, iteration by iteration.
std::optional<SlotValue> booted(const TensorArray& array, const SlotValue& boot, StreamRef stream) {
  if (!array.order()) return boot;
  try {
    return reorder(boot, *array.order(), stream);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

/// Extents of what shows the slots that one of the loops will write; nothing when none of them does.
std::optional<DDim> ProgramRun::Beside::extents(const StackedView& view) const {
  for (const auto& one : *runs) {
    const std::vector<LoopForm::Output>& outputs = one->loop().form().outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].array != view.array) continue;
      const DDim stacked = one->stacked(i);
      DDim dims;
      for (const int axis : view.axes)
        dims = dims.inserted(dims.rank(), axis == StackedView::one ? 1 : stacked[axis == StackedView::iteration ? 0 : axis + 1]);
      return dims;
    }
  }
  return std::nullopt;
}

/// As `value_of`, where what comes of the slots of loops beside is computed from their extents. An empty value: that was not enough.
task<Value> ProgramRun::value_beside(std::shared_ptr<ProgramRun> run, VarId var, ScopePtr scope, Beside beside) {
  if (beside.behind == nullptr || !beside.behind->contains(var)) {
    const Value value = co_await value_of(run, var, scope);
    co_return value;
  }
  const std::vector<CompiledOp>& ops = run->executable_.block(0).ops;
  const auto makes = [var](const CompiledOp& op) { return std::count(op.op->outputs.begin(), op.op->outputs.end(), var) > 0; };
  const auto maker = std::find_if(ops.begin(), ops.end(), makes);
  if (maker == ops.end() || !maker->kernel) co_return Value();
  const Op& op = *maker->op;
  std::vector<Value> inputs(op.inputs.size());
  std::vector<const Value*> seen(op.inputs.size(), nullptr);
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (op.inputs[i] == no_var) continue;
    const StackedView* view =
        StackedViews::reads_extents(run->executable_.program(), op, i) ? run->executable_.stacked_views().find(op.inputs[i]) : nullptr;
    const std::optional<DDim> dims = view == nullptr ? std::nullopt : beside.extents(*view);
    if (dims) {  // nobody looks at the elements
      const Tensor nothing = zeros(DDim{}, run->executable_.program().var(op.inputs[i]).type.dtype, run->stream(*maker, *scope));
      inputs[i] = broadcast_view(nothing, *dims);
    } else {
      inputs[i] = co_await value_beside(run, op.inputs[i], scope, beside);
    }
    if (inputs[i].empty()) co_return Value();
    seen[i] = &inputs[i];
    if (!inputs[i].is_tensor()) continue;
    const Point there = inputs[i].tensor().ready();
    co_await ready(there);
  }
  std::vector<Value> outputs(op.outputs.size());
  OpContext context(op, seen, outputs, run->stream(*maker, *scope));
  try {
    maker->kernel(context);
  } catch (const Error&) {
    co_return Value();  // the op says what is wrong when it runs itself
  }
  const auto place = std::find(op.outputs.begin(), op.outputs.end(), var) - op.outputs.begin();
  co_return std::move(outputs[static_cast<std::size_t>(place)]);
}

/// Slots that come from elsewhere. One that does not come, the loop says better iteration by iteration.
task<void> ProgramRun::all_slots(TensorArray array, FusedOperands::Slots slots, std::int64_t iterations) {
  if (!array.is_fixed()) co_return;
  try {
    for (std::int64_t iteration = 0; iteration < iterations; ++iteration) {
      const auto slot = lowering::value_at(slots.first, slots.stride, iteration);
      if (!slot || *slot < -1 || *slot >= array.size()) co_return;
      if (*slot >= 0) co_await array.read(*slot);
    }
  } catch (const CancelledError&) {
    throw;
  } catch (const Error&) {
  }
}

namespace {

/// Numbers that the slots of a loop are counted from.
std::vector<VarId> terms_of(const LoopForm& form) {
  std::vector<VarId> vars;
  const auto add = [&](const LoopForm::Index& index) {
    for (const LoopForm::Index::Term& term : index.first.terms) vars.push_back(term.var);
  };
  add(form.stop.left);
  for (const LoopForm::StepInput& input : form.inputs) add(input.index);
  for (const LoopForm::Output& output : form.outputs) add(output.index);
  for (const LoopForm::State& state : form.states) add(state.index);
  std::sort(vars.begin(), vars.end());
  vars.erase(std::unique(vars.begin(), vars.end()), vars.end());
  return vars;
}

}  // namespace

/// The slots of a loop's inputs, outputs and states at the first iteration, and how many iterations there are; nothing where a number is beyond 64
/// bits, or the loop never ends.
task<std::optional<ProgramRun::FusedSlots>> ProgramRun::fused_slots(std::shared_ptr<ProgramRun> run, const LoopForm* read, ScopePtr scope,
                                                                    Beside beside) {
  const LoopForm& form = *read;
  std::map<VarId, std::int64_t> values;
  for (const VarId var : terms_of(form)) {
    const Value value = co_await value_beside(run, var, scope, beside);
    if (value.empty()) co_return std::nullopt;
    if (value.is_array()) {
      values[var] = value.array().size();
      continue;
    }
    const Point point = value.tensor().ready();
    co_await ready(point);
    values[var] = number_in(value.tensor().tensor());
  }
  FusedSlots made;
  bool known = true;
  const auto at = [&](const LoopForm::Index& index) {
    const auto first = lowering::first_value(index, values);
    known = known && first;
    return FusedOperands::Slots{first.value_or(0), index.stride};
  };
  for (const LoopForm::StepInput& input : form.inputs) made.read.push_back(at(input.index));
  for (const LoopForm::Output& output : form.outputs) made.written.push_back(at(output.index));
  for (const LoopForm::State& state : form.states) made.states.push_back(at(state.index).first);
  const auto iterations = lowering::iterations_until(form.stop, at(form.stop.left).first);
  if (!known || !iterations) co_return std::nullopt;
  made.iterations = *iterations;
  co_return made;
}

/// Everything a loop in one piece works on, awaited; without iterations when something is missing. What the loop reads was made before it, and
/// nobody waits for what it writes: waiting is safe. On a device, issued is enough. Awaited by who holds `form`.
task<FusedOperands> ProgramRun::fused_operands(std::shared_ptr<ProgramRun> run, const LoopForm* read, const CompiledOp* op, ScopePtr scope,
                                               Beside beside, Slots awaited) {
  const LoopForm& form = *read;
  const bool on_device = awaited != Slots::on_host;
  FusedOperands made;
  const std::optional<FusedSlots> slots = co_await fused_slots(run, read, scope, beside);
  if (!slots) co_return made;
  made.read = slots->read;
  made.written = slots->written;
  // (The op itself may be the host's: it carries a count.)
  const StreamRef stream = on_device ? run->executable_.device().stream(op->stream) : run->stream(*op, *scope);
  for (std::size_t i = 0; i < form.inputs.size(); ++i) {
    const LoopForm::StepInput& input = form.inputs[i];
    const Value array = co_await value_beside(run, input.array, scope, beside);
    if (array.empty()) co_return made;
    made.inputs.push_back(array.array());
    made.arriving.push_back(!on_device && array.array().is_fixed() && run->arrives_slot_by_slot(input.array));
    // What arrives shows by its first slot of how many rows it is.
    const std::int64_t iterations = awaited == Slots::all_on_device ? slots->iterations : std::min<std::int64_t>(slots->iterations, 1);
    if (on_device || made.arriving.back()) co_await all_slots(array.array(), made.read[i], iterations);
    made.boots.emplace_back();
    const auto last = lowering::value_at(made.read[i].first, made.read[i].stride, std::max<std::int64_t>(slots->iterations, 1) - 1);
    if (input.boot == no_var || !last || std::min(made.read[i].first, *last) != -1) continue;
    const Value boot = co_await value_beside(run, input.boot, scope, beside);
    if (boot.empty()) co_return made;
    const Point there = on_device ? Point() : boot.tensor().ready();
    co_await ready(there);
    made.boots.back() = booted(array.array(), boot.tensor(), stream);
    if (!made.boots.back()) co_return made;
  }
  for (const LoopForm::Output& output : form.outputs) {
    const Value array = co_await value_of(run, output.array, scope);
    made.outputs.push_back(array.array());
    made.leaving.push_back(!on_device && array.array().is_fixed() && run->leaves_slot_by_slot(output.array));
  }
  for (std::size_t i = 0; i < form.states.size(); ++i) {
    const LoopForm::State& state = form.states[i];
    if (state.initial != no_var) {
      const Value value = co_await value_beside(run, state.initial, scope, beside);
      if (value.empty()) co_return made;
      made.states.push_back(value.tensor());
      continue;
    }
    const Value array = co_await value_of(run, state.array, scope);
    const std::int64_t slot = slots->states[i];
    const std::optional<SequenceOrder>& order = array.array().order();
    if (slot == -1 && state.boot != no_var) {
      const Value boot = co_await value_beside(run, state.boot, scope, beside);
      if (boot.empty()) co_return made;
      std::optional<SlotValue> first = booted(array.array(), boot.tensor(), stream);
      if (!first) co_return made;
      made.states.push_back(std::move(*first));
    } else if (const std::optional<LoDTensor> held = slot < 0 ? std::nullopt : array.array().peek(slot)) {
      made.states.push_back(order ? SlotValue(*held, *order, slot) : SlotValue(*held));
    } else {
      co_return made;  // reads what nothing wrote: the loop says so, iteration by iteration
    }
  }
  for (const VarId var : form.shared) {
    const Value value = co_await value_beside(run, var, scope, beside);
    if (value.empty()) co_return made;
    const Point point = on_device ? Point() : value.tensor().ready();
    co_await ready(point);
    made.shared.push_back(value.tensor().tensor());
  }
  for (const SlotValue& state : made.states) {
    const Point point = on_device ? Point() : state.ready();
    co_await ready(point);
  }
  made.iterations = slots->iterations;
  co_return made;
}

namespace {

/// What is wrong with the values, the loop says better iteration by iteration.
std::unique_ptr<FusedRun> prepared(const std::shared_ptr<const FusedLoop>& loop, FusedOperands operands, StreamRef stream) {
  try {
    return FusedRun::prepare(loop, std::move(operands), stream);
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

/// Prepared, or null when the loop has to run iteration by iteration after all.
task<std::unique_ptr<FusedRun>> ProgramRun::prepare_fused(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope,
                                                          Beside beside) {
  const std::shared_ptr<const FusedLoop> loop = run->fused_form(*op, *scope);
  if (loop == nullptr) co_return nullptr;
  FusedOperands operands = co_await fused_operands(run, &loop->form(), op, scope, beside, Slots::on_host);
  if (operands.iterations > 0) run->why_[op] = "what it works on does not fit: slots that are not there yet, or extents that differ";
  const std::int64_t limit = op->op->attributes.get_or<std::int64_t>("max_trips", -1);
  if (limit >= 0 && operands.iterations > limit) co_return nullptr;
  operands.sources.resize(loop->form().inputs.size());
  for (std::size_t i = 0; i < beside.runs->size(); ++i) {
    const std::vector<LoopForm::Output>& outputs = (*beside.runs)[i]->loop().form().outputs;
    for (std::size_t input = 0; input < operands.sources.size(); ++input)
      for (std::size_t output = 0; output < outputs.size(); ++output)
        if (outputs[output].array == loop->form().inputs[input].array) operands.sources[input] = {(*beside.runs)[i].get(), output};
  }
  co_return prepared(loop, std::move(operands), run->stream(*op, *scope));
}

/// All iterations of what was prepared: of one loop, or of several side by side.
task<void> ProgramRun::iteration_fused(std::shared_ptr<ProgramRun>, FusedRun* one, Wavefront* several, StreamRef stream) {
  while (one != nullptr ? one->advance(stream) : several->advance(stream)) co_await turned(stream);
}

/// Behind iterations that were begun.
task<void> ProgramRun::turned(StreamRef stream) {
  // Another thread may be on the stream: then it runs the iterations, later.
  const Point done = stream.position();
  co_await ready(done);
  co_await this_task::yield();  // timers, and other runs of the executor, get their turn
  co_await this_task::checkpoint();
}

/// What a fused loop leaves becomes values of the program. False when it did not come to its end: the rest is to be done iteration by iteration.
task<bool> ProgramRun::finish_fused(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope, std::unique_ptr<FusedRun> fused,
                                    LoopStart* start) {
  if (fused->turned() == 0) co_return false;
  std::vector<SlotValue> last = fused->finish(run->stream(*op, *scope));
  const bool whole = co_await end_loop(run, &fused->loop().form(), op, scope, std::move(last), fused->turned(), fused->iterations(), start);
  co_return whole;
}

/// What a loop carries behind the iterations that it has done. False when there are more.
task<bool> ProgramRun::end_loop(std::shared_ptr<ProgramRun> run, const LoopForm* form, const CompiledOp* op, ScopePtr scope,
                                std::vector<SlotValue> last, std::int64_t turned, std::int64_t iterations, LoopStart* start) {
  if (turned == iterations) {
    co_await finish_loop(run, form, op, scope, std::move(last), iterations);
    ++run->result_.fused_loops;
    co_return true;
  }
  std::vector<Value> carried = co_await carried_behind(run, form, op, scope, std::move(last), turned);
  for (Value& value : carried) start->carried.push_back({std::move(value), nullptr, 0, nullptr});
  start->iteration = turned;
  run->result_.iterations += turned;
  co_return false;
}

/// What the loop carries behind so many iterations. Awaited by who holds `form`.
task<std::vector<Value>> ProgramRun::carried_behind(std::shared_ptr<ProgramRun> run, const LoopForm* read, const CompiledOp* op,
                                                    ScopePtr scope, std::vector<SlotValue> last, std::int64_t iterations) {
  const LoopForm& form = *read;
  std::vector<Value> made;
  for (std::size_t i = 0; i < op->outputs.size(); ++i) {
    if (!form.carried[i].counter) {
      made.emplace_back(last[form.carried[i].state]);
      continue;
    }
    const std::int64_t begin = co_await integer_of(run, op->op->inputs[i], scope);
    const auto grown = static_cast<std::uint64_t>(form.carried[i].stride) * static_cast<std::uint64_t>(iterations);
    const auto end = static_cast<std::int64_t>(static_cast<std::uint64_t>(begin) + grown);
    const DType dtype = run->executable_.program().var(op->op->outputs[i]).type.dtype;
    made.emplace_back(dtype == DType::i32 ? Tensor::scalar(static_cast<std::int32_t>(end)) : Tensor::scalar(end));
  }
  co_return made;
}

/// Awaited by who holds `form`.
task<void> ProgramRun::finish_loop(std::shared_ptr<ProgramRun> run, const LoopForm* form, const CompiledOp* op, ScopePtr scope,
                                   std::vector<SlotValue> last, std::int64_t iterations) {
  std::vector<Value> carried = co_await carried_behind(run, form, op, scope, std::move(last), iterations);
  for (std::size_t i = 0; i < carried.size(); ++i) scope->set(op->outputs[i], std::move(carried[i]));
  // An iteration that ends behind other ops than its test is one, too.
  const bool another = run->executable_.block(op->sub_block).test == 0;
  const std::int64_t limit = op->op->attributes.get_or<std::int64_t>("max_trips", -1);
  run->result_.iterations += iterations + (another && iterations != limit ? 1 : 0);
}

task<int> ProgramRun::team_size(StreamRef stream) {
  const auto threads = std::make_shared<int>(1);
  stream.enqueue([threads](ThreadTeam& team) { *threads = team.size(); });
  const Point known = stream.position();
  co_await ready(known);
  co_return *threads;
}

/// The other loops of a group get what the first one made of them: their iterations, done, or leave to begin themselves.
struct ProgramRun::Companions {
  explicit Companions(const std::vector<std::shared_ptr<Companion>>* of) {
    if (of != nullptr) all = *of;
  }
  Companions(const Companions&) = delete;
  Companions& operator=(const Companions&) = delete;
  ~Companions() {
    for (const auto& each : all) each->gate.open();
  }
  std::vector<std::shared_ptr<Companion>> all;
};

/// False when the loop has to run iteration by iteration after all.
task<bool> ProgramRun::run_fused(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope, LoopStart* start) {
  if (op->on_device != nullptr) {
    const bool done = co_await run_fused_on_device(run, op, scope, start);
    co_return done;
  }
  if (const auto found = run->companions_.find(op); found != run->companions_.end()) {
    const std::shared_ptr<Companion> me = found->second;
    co_await me->gate.wait();
    std::unique_ptr<FusedRun> done = std::move(me->done);
    if (done != nullptr) {
      const bool whole = co_await finish_fused(run, op, scope, std::move(done), start);
      co_return whole;
    }
    const bool fits = run->fused_form(*op, *scope) != nullptr;
    for (std::shared_ptr<Companion> each = me->before; fits && each != nullptr; each = each->before) co_await each->ended.wait();
  }
  const auto led = run->led_by_.find(op);
  const Companions companions(led == run->led_by_.end() ? nullptr : &led->second);
  std::vector<std::unique_ptr<FusedRun>> runs;
  std::vector<const CompiledOp*> ops{op};
  std::unique_ptr<FusedRun> first = co_await prepare_fused(run, op, scope, Beside{&runs, nullptr});
  if (first == nullptr) co_return false;
  const StreamRef stream = run->stream(*op, *scope);
  const int threads = co_await team_size(stream);
  const bool side_by_side = Wavefront::pays(first->rows(), threads);
  bool passes = first->passes_slots();
  std::size_t takes = 0;
  for (; takes < companions.all.size() && !companions.all[takes]->late; ++takes)
    passes = passes || run->passes_slots(*companions.all[takes]->op, *scope);
  const bool beside = side_by_side || passes;
  runs.push_back(std::move(first));
  for (std::size_t i = 0; beside && i < takes; ++i) {
    std::unique_ptr<FusedRun> next = co_await prepare_fused(run, companions.all[i]->op, scope, Beside{&runs, &companions.all[i]->behind});
    if (next == nullptr) continue;
    runs.push_back(std::move(next));
    ops.push_back(companions.all[i]->op);
  }
  const std::string name = run->name_of(*op) + (runs.size() > 1 ? fmt::format(", fused, {} loops side by side", runs.size()) : ", fused");
  const TraceSpan span(run->options_.tracer, "loop", name, run->track(*op, *scope), scope->iteration());
  if (runs.size() > 1) run->result_.loops_side_by_side += static_cast<std::int64_t>(runs.size());
  if (runs.size() > 1 && side_by_side) {
    Wavefront wavefront(std::move(runs), threads, stream);
    if (passes)
      co_await pass_slots(run, op, scope, &wavefront.runs(), &wavefront);
    else
      co_await iteration_fused(run, nullptr, &wavefront, stream);
    runs = wavefront.take();
  } else {
    for (const auto& each : runs) each->deal(threads, stream);
    if (passes)
      co_await pass_slots(run, op, scope, &runs, nullptr);
    else
      co_await iteration_fused(run, runs[0].get(), nullptr, stream);
  }
  for (const auto& companion : companions.all) {
    const auto at = std::find(ops.begin(), ops.end(), companion->op);
    if (at == ops.end()) continue;
    companion->done = std::move(runs[static_cast<std::size_t>(at - ops.begin())]);
  }
  const bool whole = co_await finish_fused(run, op, scope, std::move(runs[0]), start);
  co_return whole;
}

}  // namespace millrace
