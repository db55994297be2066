// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/operand_binding.h>

#include <algorithm>
#include <span>

#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/fill.h>
#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/lowering/internal/loop_numbers.h>
#include <millrace/runtime/program/internal/few.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>

namespace millrace {
namespace {

/// A number that a loop counts by may be a device's: an extent, or computed by a loop around it.
std::int64_t number_in(const Tensor& made) { return (made.host_accessible() ? made : made.copy_to(CpuPlace{})).item_int(); }

/// A value that nothing ever wrote is an error of the op that reads it: the loop says which, iteration by iteration.
bool is_written(const Tensor& value) { return value.elements() == 0 || value.storage()->written(); }

/// The rows before slot 0, in the batch's order; nothing when they do not fit: the loop says why, iteration by iteration.
std::optional<SlotValue> booted(const TensorArray& array, const SlotValue& boot, StreamRef stream) {
  if (!array.order()) return boot;
  try {
    return reorder(boot, *array.order(), stream);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Extents of a view of slots that one of the runs will write; nothing when none of them does.
std::optional<DDim> extents(const ConcurrentRuns& concurrent, const StackedView& view) {
  for (const auto& one : *concurrent.runs) {
    const std::vector<LoopForm::Output>& outputs = one->form().outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].array != view.array) continue;
      const std::optional<DDim> stacked = one->stacked(i);
      if (!stacked) return std::nullopt;
      DDim dims;
      for (const int axis : view.axes)
        dims = dims.inserted(dims.rank(), axis == StackedView::one ? 1 : (*stacked)[axis == StackedView::iteration ? 0 : axis + 1]);
      return dims;
    }
  }
  return std::nullopt;
}

/// Slots that come from elsewhere. One that does not come, the loop reports better iteration by iteration.
task<void> all_slots(const LoopBackend* backend, TensorArray array, LoopOperands::Slots slots, std::int64_t iterations) {
  if (!array.is_fixed()) co_return;
  // Many arrays are filled at once, and then one slot stands for all.
  if (iterations > 1 && slots.first >= 0 && slots.first < array.size()) {
    std::vector<std::pair<TensorArray, std::int64_t>> first{{array, slots.first}};
    const bool there = co_await await_slots(std::move(first));
    if (!there || array.filled() || backend->begins_early(array, slots, iterations)) co_return;
    if (array.filling()) {
      std::vector<std::pair<TensorArray, std::int64_t>> last{{array, array.size() - 1}};
      co_await await_slots(std::move(last));
      if (array.filled()) co_return;
    }
  }
  std::vector<std::pair<TensorArray, std::int64_t>> wanted;
  for (std::int64_t iteration = 0; iteration < iterations; ++iteration) {
    const auto slot = lowering::value_at(slots.first, slots.stride, iteration);
    if (!slot || *slot < -1 || *slot >= array.size()) break;
    if (*slot >= 0) wanted.emplace_back(array, *slot);
  }
  co_await await_slots(std::move(wanted));
}

/// The slots of a loop's inputs, outputs and states at the first iteration, and the number of iterations.
struct NumberedSlots {
  PooledVector<LoopOperands::Slots> read, written;
  PooledVector<std::int64_t> states;
  std::int64_t iterations = 0;
};

/// `numbers`: of the vars that the form counts from. Nothing where a number is beyond 64 bits, or the loop never ends.
std::optional<NumberedSlots> slots_of(const LoopForm& form, std::span<const std::int64_t> numbers) {
  NumberedSlots made;
  made.read.reserve(form.inputs.size());
  made.written.reserve(form.outputs.size());
  made.states.reserve(form.states.size());
  bool known = true;
  const auto at = [&](const LoopForm::Index& index) {
    const auto first = lowering::first_value(index, form.counted, numbers);
    known = known && first;
    return LoopOperands::Slots{first.value_or(0), index.stride};
  };
  for (const LoopForm::StepInput& input : form.inputs) made.read.push_back(at(input.index));
  for (const LoopForm::Output& output : form.outputs) made.written.push_back(at(output.index));
  for (const LoopForm::State& state : form.states) made.states.push_back(at(state.index).first);
  const auto iterations = lowering::iterations_until(form.stop, at(form.stop.left).first);
  if (!known || !iterations) return std::nullopt;
  made.iterations = *iterations;
  return made;
}

}  // namespace

task<bool> await_slots(std::vector<std::pair<TensorArray, std::int64_t>> slots) {
  try {
    for (const auto& slot : slots) co_await slot.first.read(slot.second);
  } catch (const CancelledError&) {
    throw;
  } catch (const Error&) {
    co_return false;
  }
  co_return true;
}

OperandBinding::OperandBinding(LoopBackend& backend, LoopValues& values, ConcurrentRuns concurrent, StreamRef stream)
    : backend_(backend),
      form_(*backend.form()),
      values_(values),
      concurrent_(concurrent),
      stream_(stream),
      on_host_(backend.on_host()),
      awaited_(form_.inputs.size(), false) {}

/// Whether nobody has to wait for the point.
bool OperandBinding::reached(const Point& point) {
  if (point.reached()) {
    point.check();
    return true;
  }
  missing_ = point;
  return false;
}

/// A value, where one that comes of slots of concurrent runs is computed from their extents. Null: it is missing now, or the extents were not
/// enough.
const Value* OperandBinding::find(VarId var) {
  return concurrent_.behind != nullptr && concurrent_.behind->contains(var) ? compute(var) : find_made(var);
}

const Value* OperandBinding::find_made(VarId var) {
  const Value* const value = values_.find(var);
  if (value == nullptr) missing_ = var;
  return value;
}

const Value* OperandBinding::compute(VarId var) {
  if (const auto known = computed_.find(var); known != computed_.end()) return &known->second;
  const PreparedOp* const maker = values_.maker(var);
  if (maker == nullptr) return nullptr;
  const Op& op = *maker->op;
  std::vector<Value> shown(op.inputs.size());
  std::vector<const Value*> inputs(op.inputs.size(), nullptr);
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (op.inputs[i] == no_var) continue;
    const StackedView* view = StackedViews::reads_extents(values_.program(), op, i) ? values_.stacked_view(op.inputs[i]) : nullptr;
    const std::optional<DDim> dims = view == nullptr ? std::nullopt : extents(concurrent_, *view);
    if (dims) {  // nobody looks at the elements
      const Tensor nothing = zeros(DDim{}, values_.program().var(op.inputs[i]).type.dtype, values_.stream(*maker));
      shown[i] = broadcast_view(nothing, *dims);
      inputs[i] = &shown[i];
      continue;
    }
    inputs[i] = find(op.inputs[i]);
    if (inputs[i] == nullptr || inputs[i]->empty()) return nullptr;
    if (inputs[i]->is_tensor() && !reached(inputs[i]->tensor().ready())) return nullptr;
  }
  std::vector<Value> outputs(op.outputs.size());
  OpContext context(op, inputs, outputs, values_.stream(*maker));
  try {
    maker->kernel(context);
  } catch (const Error&) {
    return nullptr;  // the op says what is wrong when it runs itself
  }
  const auto place = std::find(op.outputs.begin(), op.outputs.end(), var) - op.outputs.begin();
  return &computed_.emplace(var, std::move(outputs[static_cast<std::size_t>(place)])).first->second;
}

/// False: something is missing. On the host the rows of the input are read when the backend prepares its run.
bool OperandBinding::add_input(std::size_t index, std::int64_t iterations, LoopOperands& made) {
  const LoopForm::StepInput& input = form_.inputs[index];
  const Value* const value = find(input.array);
  if (value == nullptr) return false;
  const TensorArray& array = value->array();
  made.inputs.push_back(array);
  made.arriving.push_back(on_host_ && array.is_fixed() && values_.arrives(input.array));
  if (!awaited_[index] && array.is_fixed() && (!on_host_ || made.arriving.back())) {
    // A slot that arrives shows how many rows there are.
    missing_ = MissingSlots{index, array, made.read[index], on_host_ ? std::min<std::int64_t>(iterations, 1) : iterations};
    return false;
  }
  made.boots.emplace_back();
  const auto last = lowering::value_at(made.read[index].first, made.read[index].stride, std::max<std::int64_t>(iterations, 1) - 1);
  if (input.boot == no_var || !last || std::min(made.read[index].first, *last) != -1) return true;
  const Value* const boot = find(input.boot);
  if (boot == nullptr || (on_host_ && !reached(boot->tensor().ready()))) return false;
  if (!is_written(boot->tensor().tensor())) return false;
  made.boots.back() = booted(array, boot->tensor(), stream_);
  return made.boots.back().has_value();
}

/// `slot`: of the state's array, as the first iteration reads it.
bool OperandBinding::add_state(std::size_t index, std::int64_t slot, LoopOperands& made) {
  const LoopForm::State& state = form_.states[index];
  if (state.initial != no_var) {
    const Value* const value = find(state.initial);
    if (value != nullptr) made.states.push_back(value->tensor());
    return value != nullptr;
  }
  const Value* const found = find_made(state.array);
  if (found == nullptr) return false;
  const TensorArray& array = found->array();
  const std::optional<SequenceOrder>& order = array.order();
  if (slot == -1 && state.boot != no_var) {
    const Value* const boot = find(state.boot);
    if (boot == nullptr || (on_host_ && !reached(boot->tensor().ready()))) return false;
    std::optional<SlotValue> first = booted(array, boot->tensor(), stream_);
    if (first) made.states.push_back(*first);
    return first.has_value();
  }
  const std::optional<LoDTensor> held = slot < 0 ? std::nullopt : array.peek(slot);
  if (held) made.states.push_back(order ? SlotValue(*held, order, slot) : SlotValue(*held));
  return held.has_value();  // a slot that nothing wrote: the loop says so, iteration by iteration
}

/// False: something is missing.
bool OperandBinding::collect(LoopOperands& made) {
  Few<std::int64_t, 8> numbers(form_.counted.size());
  for (std::size_t i = 0; i < form_.counted.size(); ++i) {
    const Value* const value = find(form_.counted[i]);
    if (value == nullptr || value->empty()) return false;
    if (!value->is_array() && !reached(value->tensor().ready())) return false;
    numbers[i] = value->is_array() ? value->array().size() : number_in(value->tensor().tensor());
  }
  std::optional<NumberedSlots> slots = slots_of(form_, numbers.span());
  if (!slots) return false;
  made.inputs.reserve(form_.inputs.size());
  made.boots.reserve(form_.inputs.size());
  made.outputs.reserve(form_.outputs.size());
  made.states.reserve(form_.states.size());
  made.shared.reserve(form_.shared.size());
  made.read = std::move(slots->read);
  made.written = std::move(slots->written);
  for (std::size_t i = 0; i < form_.inputs.size(); ++i)
    if (!add_input(i, slots->iterations, made)) return false;
  for (const LoopForm::Output& output : form_.outputs) {
    const Value* const array = find_made(output.array);
    if (array == nullptr) return false;
    made.outputs.push_back(array->array());
    made.leaving.push_back(on_host_ && array->array().is_fixed() && values_.leaves(output.array));
  }
  for (std::size_t i = 0; i < form_.states.size(); ++i)
    if (!add_state(i, slots->states[i], made)) return false;
  for (const VarId var : form_.shared) {
    const Value* const value = find(var);
    if (value == nullptr || (on_host_ && !reached(value->tensor().ready()))) return false;
    if (!is_written(value->tensor().tensor())) return false;
    made.shared.push_back(value->tensor().tensor());
  }
  for (const SlotValue& state : made.states)
    if (!is_written(state.tensor()) || (on_host_ && !reached(state.ready()))) return false;
  made.iterations = slots->iterations;
  made.sources.resize(made.inputs.size());
  for (std::size_t run = 0; concurrent_.runs != nullptr && run < concurrent_.runs->size(); ++run) {
    const LoopRun* const one = (*concurrent_.runs)[run].get();
    const std::vector<LoopForm::Output>& outputs = one->form().outputs;
    for (std::size_t input = 0; input < made.sources.size(); ++input)
      for (std::size_t output = 0; output < outputs.size(); ++output)
        if (outputs[output].array == form_.inputs[input].array) made.sources[input] = {one, output};
  }
  return true;
}

std::optional<LoopOperands> OperandBinding::bind() {
  missing_ = std::monostate();
  LoopOperands made;
  const bool all = collect(made);
  if (!std::holds_alternative<std::monostate>(missing_)) return std::nullopt;
  if (!all) return LoopOperands();
  return made;
}

task<void> OperandBinding::await_missing() {
  if (const VarId* const var = std::get_if<VarId>(&missing_)) co_await values_.wait(*var);
  if (const Point* const point = std::get_if<Point>(&missing_)) {
    const Point there = *point;
    co_await ready(there);
  }
  if (const MissingSlots* const slots = std::get_if<MissingSlots>(&missing_)) {
    co_await all_slots(&backend_, slots->array, slots->slots, slots->iterations);
    awaited_[slots->input] = true;
  }
}

task<LoopOperands> await_operands(LoopBackend* backend, LoopValues* values, ConcurrentRuns concurrent, StreamRef stream) {
  OperandBinding binding(*backend, *values, concurrent, stream);
  std::optional<LoopOperands> made = binding.bind();
  while (!made) {
    co_await binding.await_missing();
    made = binding.bind();
  }
  co_return std::move(*made);
}

bool has_counters(const LoopForm& form, const Op& op, LoopValues& values) {
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    if (!form.carried[i].counter) continue;
    const Value* const begin = values.find(op.inputs[i]);
    if (begin == nullptr || !begin->tensor().ready().reached()) return false;
  }
  return true;
}

task<void> await_counters(const LoopForm* form, const Op* op, LoopValues* values) {
  for (std::size_t i = 0; i < op->outputs.size(); ++i) {
    if (!form->carried[i].counter) continue;
    if (values->find(op->inputs[i]) == nullptr) co_await values->wait(op->inputs[i]);
    const Point point = values->find(op->inputs[i])->tensor().ready();
    co_await ready(point);
  }
}

std::vector<Value> carried_behind(const LoopForm& form, const Op& op, LoopValues& values, std::vector<SlotValue> last,
                                  std::int64_t iterations) {
  std::vector<Value> made;
  made.reserve(op.outputs.size());
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    const LoopForm::Carried& carried = form.carried[i];
    if (!carried.counter) {
      made.emplace_back(last[carried.state]);
      continue;
    }
    const std::int64_t begin = number_in(values.find(op.inputs[i])->tensor().tensor());
    const auto grown = static_cast<std::uint64_t>(carried.stride) * static_cast<std::uint64_t>(iterations);
    const auto end = static_cast<std::int64_t>(static_cast<std::uint64_t>(begin) + grown);
    const DType dtype = values.program().var(op.outputs[i]).type.dtype;
    made.emplace_back(dtype == DType::i32 ? Tensor::scalar(static_cast<std::int32_t>(end)) : Tensor::scalar(end));
  }
  return made;
}

}  // namespace millrace
