// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/prepared_op.h>

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/tensor/copy.h>

namespace millrace {

OpPreparer::OpPreparer(const Program& program, const std::shared_ptr<Device>& device) : program_(program), device_(device) {
  find_host_vars();
}

/// Integers and booleans that steer a loop: no larger than a shape.
bool OpPreparer::small_integer(VarId var) const {
  const VarType& type = program_.var(var).type;
  return type.is_tensor() && !is_floating(type.dtype) && type.is_static() && type.lod_depth == 0 && type.shape->elements() <= 16;
}

/// The greatest set of vars that can be computed on the host from each other alone. A carried var may turn out not to be in it: then again.
void OpPreparer::find_host_vars() {
  on_host_.assign(program_.vars().size(), false);
  for (std::size_t var = 0; var < on_host_.size(); ++var) on_host_[var] = small_integer(static_cast<VarId>(var));
  // A straight-line program computes where it is fed; one with loops is steered by small inputs too.
  if (program_.blocks().size() == 1)
    for (const Program::Port& port : program_.inputs()) on_host_[static_cast<std::size_t>(port.var)] = false;
  bool changed = true;
  while (changed) {
    changed = false;
    for (const Block& block : program_.blocks())
      for (const Op& op : block.ops) changed = demote(op) || changed;
  }
}

bool OpPreparer::demote(const Op& op) {
  if (op.type == "while") return demote_carried(op);
  static const std::set<std::string> known_on_host{"tensor_array_size", "list_length", "optional_has", "break_if", "constant"};
  if (known_on_host.contains(op.type)) return false;
  const OpDef& def = program_.registry().at(op.type);
  bool steered = def.prepare != nullptr;
  for (std::size_t i = 0; steered && i < op.inputs.size(); ++i)
    steered = op.inputs[i] == no_var || on_host_[static_cast<std::size_t>(op.inputs[i])] || def.traits.reads_extents(i);
  return !steered && take(op.outputs);
}

bool OpPreparer::demote_carried(const Op& op) {
  const Block& body = program_.block(op.attributes.get<BlockId>("sub_block").index);
  bool changed = false;
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    std::vector<VarId> same{op.inputs[i], body.params[i], body.results[i], op.outputs[i]};
    for (const Op& inner : body.ops)
      if (inner.type == "break_if") same.push_back(inner.inputs[i + 1]);
    const bool all = std::all_of(same.begin(), same.end(), [&](VarId id) { return on_host_[static_cast<std::size_t>(id)]; });
    if (!all) changed = take({body.params[i], op.outputs[i]}) || changed;
  }
  return changed;
}

bool OpPreparer::take(const std::vector<VarId>& vars) {
  bool changed = false;
  for (const VarId var : vars) {
    changed = changed || on_host_[static_cast<std::size_t>(var)];
    on_host_[static_cast<std::size_t>(var)] = false;
  }
  return changed;
}

Value OpPreparer::placed(VarId var, const Tensor& value) const {
  if (on_host_[static_cast<std::size_t>(var)] || device_->place() == value.place()) return value;
  Tensor there(value.dtype(), value.dims(), device_->memory());
  copy(value, there, device_->stream(0));
  return there;
}

PreparedOp OpPreparer::prepare(const Op& op, Chains& chains, std::optional<std::size_t> stream) {
  PreparedOp made;
  made.op = &op;
  made.def = &program_.registry().at(op.type);
  made.on_host = !op.outputs.empty() &&
                 std::all_of(op.outputs.begin(), op.outputs.end(), [&](VarId id) { return on_host_[static_cast<std::size_t>(id)]; });
  if (standard_ops()->find(op.type) == nullptr)
    for (const VarId output : op.outputs) made.checked_outputs.push_back(program_.var(output).type);
  if (made.def->prepare) made.kernel = made.def->prepare(PrepareContext(program_, op, made.on_host ? nullptr : device_.get()));
  made.copies_inputs = !made.on_host && !device_->place().is_cpu();
  // A loop of the host's numbers has a stream for what it runs on the device.
  if (stream) {
    made.stream = *stream;
    for (const VarId output : op.outputs) chains[output] = *stream;
  } else if (!made.on_host || !made.kernel) {
    made.stream = choose_stream(op, chains);
  }
  return made;
}

/// An op goes on where its first input was made, unless another op went on there before.
std::size_t OpPreparer::choose_stream(const Op& op, Chains& chains) {
  std::size_t stream = next_stream_;
  const auto made_there = [&](VarId input) { return chains.contains(input); };
  const auto first = std::find_if(op.inputs.begin(), op.inputs.end(), made_there);
  if (first == op.inputs.end()) {
    ++next_stream_;
  } else {
    stream = chains.at(*first);
    chains.erase(*first);
  }
  for (const VarId output : op.outputs) chains[output] = stream;
  return stream;
}

const Value* input_in_place(const PreparedOp& op, std::size_t input, const Value* value, StreamRef stream, Value& copied) {
  if (value == nullptr || !value->is_tensor()) return value;
  const auto& on_host = op.def->host_inputs;
  if (std::find(on_host.begin(), on_host.end(), input) != on_host.end()) {
    // It was awaited before the op runs.
    if (value->tensor().tensor().host_accessible()) return value;
    copied = LoDTensor(value->tensor().tensor().copy_to(CpuPlace{}), value->tensor().lod());
    return &copied;
  }
  if (value->tensor().place() == stream.place()) return value;
  const SlotValue& from = value->tensor();
  LoDTensor made(clone(from.tensor(), stream), from.lod());
  copied = from.has_order() ? SlotValue(std::move(made), from.order(), from.iteration()) : SlotValue(std::move(made));
  return &copied;
}

namespace {

void pass_lod(const PreparedOp& op, std::span<const Value* const> inputs, std::span<Value> outputs) {
  if (!op.def->passes_lod) return;
  const LoDTensor* carrier = nullptr;
  for (const Value* input : inputs) {
    if (input == nullptr || !input->is_tensor() || input->tensor().lod().depth() == 0) continue;
    if (carrier != nullptr && !(carrier->lod() == input->tensor().lod()))
      throw LoDError(fmt::format("two inputs of different LoD: {} and {}", carrier->to_string(), input->tensor().to_string()));
    carrier = &input->tensor();
  }
  if (carrier == nullptr) return;
  for (Value& value : outputs)
    if (value.is_tensor() && value.tensor().lod().depth() == 0 && value.tensor().dims().rank() > 0 &&
        value.tensor().rows() == carrier->rows())
      value = LoDTensor(value.tensor().tensor(), carrier->lod());
}

std::string name_of_output(const PreparedOp& op, std::size_t output) {
  return output < op.def->outputs.size() ? op.def->outputs[output] : std::to_string(output);
}

/// The slots that are written, and those that are written later.
void check_slots(const PreparedOp& op, const std::string& name, const VarType& wanted, const Value& found) {
  if (!found.is_array())
    throw ArgumentError(
        fmt::format("op {}, output '{}': expected {} as inferred, found another kind of value", op.op->type, name, wanted.to_string()));
  if (wanted.open || !wanted.shape) return;
  try {
    found.array().expect(wanted.dtype, *wanted.shape, wanted.lod_depth);
  } catch (Error& error) {
    error.add_context(fmt::format(" (op {}, output '{}': expected {} as inferred)", op.op->type, name, wanted.to_string()));
    throw;
  }
}

void check_outputs(const PreparedOp& op, std::span<const Value> outputs) {
  for (std::size_t i = 0; i < op.checked_outputs.size(); ++i) {
    const VarType& wanted = op.checked_outputs[i];
    const std::string name = name_of_output(op, i);
    if (wanted.is_array()) check_slots(op, name, wanted, outputs[i]);
    if (!wanted.is_tensor()) continue;
    if (outputs[i].empty())
      throw ArgumentError(
          fmt::format("op {}, output '{}': expected {}, found none: the kernel sets each output", op.op->type, name, wanted.to_string()));
    const Tensor& found = outputs[i].tensor().tensor();
    if (found.dtype() != wanted.dtype)
      throw DTypeError(fmt::format("op {}, output '{}': expected {} as inferred, found {}", op.op->type, name, name_of(wanted.dtype),
                                   name_of(found.dtype())));
    if (!wanted.shape) continue;
    bool same = found.rank() == wanted.shape->rank();
    for (int axis = 0; same && axis < found.rank(); ++axis)
      same = (*wanted.shape)[axis] == DDim::unknown || (*wanted.shape)[axis] == found.dim(axis);
    if (!same)
      throw ShapeError(fmt::format("op {}, output '{}': expected {} as inferred, found {}", op.op->type, name, wanted.shape->to_string(),
                                   found.dims().to_string()));
  }
}

/// Checks the LoD depth of the outputs, once `pass_lod` has run: the inference of an op that passes LoD relies on that.
void check_levels(const PreparedOp& op, std::span<const Value> outputs) {
  for (std::size_t i = 0; i < op.checked_outputs.size(); ++i) {
    const VarType& wanted = op.checked_outputs[i];
    if (!wanted.is_tensor() || outputs[i].tensor().lod().depth() == wanted.lod_depth) continue;
    const LoD& found = outputs[i].tensor().lod();
    throw LoDError(fmt::format("op {}, output '{}': expected {} levels of LoD as inferred, found {}{}", op.op->type, name_of_output(op, i),
                               wanted.lod_depth, found.depth(), found.empty() ? "" : ": " + found.brief()));
  }
}

}  // namespace

void finish_outputs(const PreparedOp& op, std::span<const Value* const> inputs, std::span<Value> outputs) {
  check_outputs(op, outputs);
  pass_lod(op, inputs, outputs);
  check_levels(op, outputs);
}

std::string describe(const Op& op, int block) {
  std::string text = fmt::format("op {} of block {}", op.type, block);
  if (!op.label.empty()) text += ", " + internal::printable(op.label);
  return text;
}

}  // namespace millrace
