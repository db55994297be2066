// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/last_state.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

SlotValue like(const SlotValue& value, LoDTensor rows) {
  return value.has_order() ? SlotValue(std::move(rows), value.order(), value.iteration()) : SlotValue(std::move(rows));
}

/// The port of the form's step that its output hands on; none for a computed output.
std::optional<std::size_t> handed_on(const LoopForm& form, std::size_t output) {
  const VarId var = form.step.outputs()[output].var;
  for (const Op& op : form.step.block(0).ops) {
    if (op.outputs.empty() || op.outputs[0] != var || !form.step.registry().at(op.type).traits.forwards) continue;
    const auto& ports = form.step.inputs();
    const auto port = std::find_if(ports.begin(), ports.end(), [&](const auto& one) { return one.var == op.inputs[0]; });
    if (port != ports.end()) return static_cast<std::size_t>(port - ports.begin());
  }
  return std::nullopt;
}

/// The output of the form's step that is the next value of the state.
std::size_t next_of(const LoopForm& form, std::size_t state) {
  const auto changes = [](const LoopForm::State& one) { return one.changes; };
  return form.outputs.size() +
         static_cast<std::size_t>(std::count_if(form.states.begin(), form.states.begin() + static_cast<std::ptrdiff_t>(state), changes));
}

/// `rows` with the order of the batch of an iteration. The first input that does not shrink tells the step of the order.
SlotValue of_batch(const LoopForm& form, const LoopOperands& operands, std::int64_t iteration, LoDTensor rows) {
  const auto leads = std::find_if(form.inputs.begin(), form.inputs.end(), [](const LoopForm::StepInput& input) { return !input.shrinks; });
  const auto leader = static_cast<std::size_t>(leads == form.inputs.end() ? 0 : leads - form.inputs.begin());
  const LoopOperands::Slots& read = operands.read.at(leader);
  return SlotValue(std::move(rows), operands.inputs[leader].order(), read.first + read.stride * iteration);
}

}  // namespace

SlotValue last_state(const LoopForm& form, const LoopOperands& operands, std::size_t index, std::int64_t iterations, LoDTensor rows) {
  for (std::int64_t left = iterations; left > 0 && form.states[index].changes; --left) {
    const std::optional<std::size_t> port = handed_on(form, next_of(form, index));
    const std::size_t inputs = operands.inputs.size();
    if (!port || *port >= inputs + form.states.size()) return SlotValue(std::move(rows));
    if (*port >= inputs ? form.states[*port - inputs].shrinks : form.inputs[*port].shrinks)
      return of_batch(form, operands, left - 1, std::move(rows));
    if (*port >= inputs) {
      index = *port - inputs;
      continue;
    }
    const std::int64_t slot = operands.read[*port].first + operands.read[*port].stride * (left - 1);
    const auto& boot = operands.boots[*port];
    if (slot < 0 && boot) return like(*boot, std::move(rows));
    return SlotValue(std::move(rows), operands.inputs[*port].order(), slot);
  }
  return like(operands.states[index], std::move(rows));
}

}  // namespace millrace
