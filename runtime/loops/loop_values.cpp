// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/loop_values.h>

#include <algorithm>
#include <map>

#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/fill.h>
#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/lowering/internal/loop_numbers.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>

namespace millrace {
namespace {

/// A number that a loop counts by may be a device's: an extent, or computed by a loop around it.
std::int64_t number_in(const Tensor& made) { return (made.host_accessible() ? made : made.copy_to(CpuPlace{})).item_int(); }

task<std::int64_t> integer_of(LoopValues* values, VarId var) {
  const Value value = co_await values->value(var);
  const Point point = value.tensor().ready();
  co_await ready(point);
  co_return number_in(value.tensor().tensor());
}

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

/// The value of a var, where one that comes of slots of concurrent runs is computed from their extents. An empty value: the extents were
/// not enough.
task<Value> value_beside(LoopValues* values, VarId var, ConcurrentRuns concurrent) {
  if (concurrent.behind == nullptr || !concurrent.behind->contains(var)) {
    Value value = co_await values->value(var);
    co_return std::move(value);
  }
  const PreparedOp* const maker = values->maker(var);
  if (maker == nullptr) co_return Value();
  const Op& op = *maker->op;
  std::vector<Value> inputs(op.inputs.size());
  std::vector<const Value*> seen(op.inputs.size(), nullptr);
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (op.inputs[i] == no_var) continue;
    const StackedView* view = StackedViews::reads_extents(values->program(), op, i) ? values->stacked_view(op.inputs[i]) : nullptr;
    const std::optional<DDim> dims = view == nullptr ? std::nullopt : extents(concurrent, *view);
    if (dims) {  // nobody looks at the elements
      const Tensor nothing = zeros(DDim{}, values->program().var(op.inputs[i]).type.dtype, values->stream(*maker));
      inputs[i] = broadcast_view(nothing, *dims);
    } else {
      inputs[i] = co_await value_beside(values, op.inputs[i], concurrent);
    }
    if (inputs[i].empty()) co_return Value();
    seen[i] = &inputs[i];
    if (!inputs[i].is_tensor()) continue;
    const Point there = inputs[i].tensor().ready();
    co_await ready(there);
  }
  std::vector<Value> outputs(op.outputs.size());
  OpContext context(op, seen, outputs, values->stream(*maker));
  try {
    maker->kernel(context);
  } catch (const Error&) {
    co_return Value();  // the op says what is wrong when it runs itself
  }
  const auto place = std::find(op.outputs.begin(), op.outputs.end(), var) - op.outputs.begin();
  co_return std::move(outputs[static_cast<std::size_t>(place)]);
}

/// Slots that come from elsewhere. One that does not come, the loop reports better iteration by iteration.
task<void> all_slots(TensorArray array, LoopOperands::Slots slots, std::int64_t iterations) {
  if (!array.is_fixed()) co_return;
  // Many arrays are filled at once, and then one slot stands for all.
  if (iterations > 1 && slots.first >= 0 && slots.first < array.size()) {
    std::vector<std::pair<TensorArray, std::int64_t>> first{{array, slots.first}};
    const bool there = co_await await_slots(std::move(first));
    if (!there || array.filled()) co_return;
  }
  std::vector<std::pair<TensorArray, std::int64_t>> wanted;
  for (std::int64_t iteration = 0; iteration < iterations; ++iteration) {
    const auto slot = lowering::value_at(slots.first, slots.stride, iteration);
    if (!slot || *slot < -1 || *slot >= array.size()) break;
    if (*slot >= 0) wanted.emplace_back(array, *slot);
  }
  co_await await_slots(std::move(wanted));
}

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

/// The slots of a loop's inputs, outputs and states at the first iteration, and the number of iterations.
struct NumberedSlots {
  std::vector<LoopOperands::Slots> read, written;
  std::vector<std::int64_t> states;
  std::int64_t iterations = 0;
};

/// Nothing where a number is beyond 64 bits, or the loop never ends.
std::optional<NumberedSlots> slots_of(const LoopForm& form, const std::map<VarId, std::int64_t>& numbers) {
  NumberedSlots made;
  bool known = true;
  const auto at = [&](const LoopForm::Index& index) {
    const auto first = lowering::first_value(index, numbers);
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

task<std::optional<NumberedSlots>> await_numbers(const LoopForm* form, LoopValues* values, ConcurrentRuns concurrent) {
  std::map<VarId, std::int64_t> numbers;
  for (const VarId var : terms_of(*form)) {
    const Value value = co_await value_beside(values, var, concurrent);
    if (value.empty()) co_return std::nullopt;
    if (value.is_array()) {
      numbers[var] = value.array().size();
      continue;
    }
    const Point point = value.tensor().ready();
    co_await ready(point);
    numbers[var] = number_in(value.tensor().tensor());
  }
  co_return slots_of(*form, numbers);
}

/// The operands of one loop, and their binding.
struct Binding {
  const LoopForm& form;
  LoopValues* values;
  ConcurrentRuns concurrent;
  StreamRef stream;
  bool on_host;
  std::int64_t iterations = 0;

  /// On the host a value is awaited until it is ready.
  Point wanted(const SlotValue& value) const { return on_host ? value.ready() : Point(); }
};

/// False: something is missing.
task<bool> await_input(const Binding* binding, std::size_t index, LoopOperands* made) {
  const LoopForm::StepInput& input = binding->form.inputs[index];
  const Value array = co_await value_beside(binding->values, input.array, binding->concurrent);
  if (array.empty()) co_return false;
  made->inputs.push_back(array.array());
  made->arriving.push_back(binding->on_host && array.array().is_fixed() && binding->values->arrives(input.array));
  // A slot that arrives shows how many rows there are.
  const std::int64_t iterations = binding->on_host ? std::min<std::int64_t>(binding->iterations, 1) : binding->iterations;
  if (!binding->on_host || made->arriving.back()) co_await all_slots(array.array(), made->read[index], iterations);
  made->boots.emplace_back();
  const auto last =
      lowering::value_at(made->read[index].first, made->read[index].stride, std::max<std::int64_t>(binding->iterations, 1) - 1);
  if (input.boot == no_var || !last || std::min(made->read[index].first, *last) != -1) co_return true;
  const Value boot = co_await value_beside(binding->values, input.boot, binding->concurrent);
  if (boot.empty()) co_return false;
  const Point there = binding->wanted(boot.tensor());
  co_await ready(there);
  made->boots.back() = booted(array.array(), boot.tensor(), binding->stream);
  co_return made->boots.back().has_value();
}

/// `slot`: of the state's array, as the first iteration reads it.
task<bool> await_state(const Binding* binding, std::size_t index, std::int64_t slot, LoopOperands* made) {
  const LoopForm::State& state = binding->form.states[index];
  if (state.initial != no_var) {
    const Value value = co_await value_beside(binding->values, state.initial, binding->concurrent);
    if (!value.empty()) made->states.push_back(value.tensor());
    co_return !value.empty();
  }
  const Value array = co_await binding->values->value(state.array);
  const std::optional<SequenceOrder>& order = array.array().order();
  if (slot == -1 && state.boot != no_var) {
    const Value boot = co_await value_beside(binding->values, state.boot, binding->concurrent);
    if (boot.empty()) co_return false;
    std::optional<SlotValue> first = booted(array.array(), boot.tensor(), binding->stream);
    if (first) made->states.push_back(*first);
    co_return first.has_value();
  }
  const std::optional<LoDTensor> held = slot < 0 ? std::nullopt : array.array().peek(slot);
  if (held) made->states.push_back(order ? SlotValue(*held, order, slot) : SlotValue(*held));
  co_return held.has_value();  // a slot that nothing wrote: the loop says so, iteration by iteration
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

task<LoopOperands> await_operands(LoopBackend* backend, LoopValues* values, ConcurrentRuns concurrent, StreamRef stream) {
  Binding binding{*backend->form(), values, concurrent, stream, backend->on_host()};
  LoopOperands made;
  const std::optional<NumberedSlots> slots = co_await await_numbers(&binding.form, values, concurrent);
  if (!slots) co_return std::move(made);
  binding.iterations = slots->iterations;
  made.inputs.reserve(binding.form.inputs.size());
  made.boots.reserve(binding.form.inputs.size());
  made.outputs.reserve(binding.form.outputs.size());
  made.states.reserve(binding.form.states.size());
  made.shared.reserve(binding.form.shared.size());
  made.read = slots->read;
  made.written = slots->written;
  for (std::size_t i = 0; i < binding.form.inputs.size(); ++i) {
    const bool there = co_await await_input(&binding, i, &made);
    if (!there) co_return std::move(made);
  }
  for (const LoopForm::Output& output : binding.form.outputs) {
    const Value array = co_await values->value(output.array);
    made.outputs.push_back(array.array());
    made.leaving.push_back(binding.on_host && array.array().is_fixed() && values->leaves(output.array));
  }
  for (std::size_t i = 0; i < binding.form.states.size(); ++i) {
    const bool there = co_await await_state(&binding, i, slots->states[i], &made);
    if (!there) co_return std::move(made);
  }
  for (const VarId var : binding.form.shared) {
    const Value value = co_await value_beside(values, var, concurrent);
    if (value.empty()) co_return std::move(made);
    const Point point = binding.wanted(value.tensor());
    co_await ready(point);
    made.shared.push_back(value.tensor().tensor());
  }
  for (const SlotValue& state : made.states) {
    const Point point = binding.wanted(state);
    co_await ready(point);
  }
  made.iterations = slots->iterations;
  made.sources.resize(made.inputs.size());
  for (std::size_t run = 0; concurrent.runs != nullptr && run < concurrent.runs->size(); ++run) {
    const LoopRun* const one = (*concurrent.runs)[run].get();
    const std::vector<LoopForm::Output>& outputs = one->form().outputs;
    for (std::size_t input = 0; input < made.sources.size(); ++input)
      for (std::size_t output = 0; output < outputs.size(); ++output)
        if (outputs[output].array == binding.form.inputs[input].array) made.sources[input] = {one, output};
  }
  co_return std::move(made);
}

task<std::vector<Value>> carried_behind(const LoopForm* form, const Op* op, LoopValues* values, std::vector<SlotValue> last,
                                        std::int64_t iterations) {
  std::vector<Value> made;
  for (std::size_t i = 0; i < op->outputs.size(); ++i) {
    const LoopForm::Carried& carried = form->carried[i];
    if (!carried.counter) {
      made.emplace_back(last[carried.state]);
      continue;
    }
    const std::int64_t begin = co_await integer_of(values, op->inputs[i]);
    const auto grown = static_cast<std::uint64_t>(carried.stride) * static_cast<std::uint64_t>(iterations);
    const auto end = static_cast<std::int64_t>(static_cast<std::uint64_t>(begin) + grown);
    const DType dtype = values->program().var(op->outputs[i]).type.dtype;
    made.emplace_back(dtype == DType::i32 ? Tensor::scalar(static_cast<std::int32_t>(end)) : Tensor::scalar(end));
  }
  co_return std::move(made);
}

}  // namespace millrace
