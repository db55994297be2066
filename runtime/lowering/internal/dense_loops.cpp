// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/internal/dense_loops.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include <millrace/runtime/lowering/internal/loop_numbers.h>
#include <millrace/runtime/lowering/internal/reads.h>
#include <millrace/runtime/lowering/internal/renamer.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::lowering {
namespace {

using Terms = std::vector<LoopForm::Index::Term>;

bool counts_slots(const LoopForm::Index& index) { return index.stride == 1 && index.roots.number == 0 && index.roots.terms.empty(); }

/// Whether a state is a slot of the iteration before, and before the first one a tensor outside.
bool is_handed_on(const Program& program, const LoopForm::State& state) {
  return state.boot != no_var && program.var(state.boot).block == 0 && !state.shrinks && state.changes && state.index.stride == 1 &&
         state.index.roots.number == -1 && state.index.roots.terms.empty();
}

}  // namespace

DenseLoops::DenseLoops(Program& program) : program_(program), reads_(reads_of(program)) {
  for (const Op& op : program.block(0).ops)
    for (const VarId output : op.outputs) makers_[output] = &op;
}

bool DenseLoops::is_small(const Program& program, const Op& op, std::string_view part) {
  if (!op.attributes.has("sub_block")) return false;
  const Block& body = program.block(op.attributes.get<BlockId>("sub_block").index);
  bool found = false;
  for (const Op& each : body.ops) {
    if (program.registry().at(each.type).traits.product || each.attributes.has("sub_block") || each.attributes.has("then_block"))
      return false;
    found = found || each.type == part;
  }
  return found && body.ops.size() <= 256;
}

bool DenseLoops::has_small(const Program& program, std::string_view part) {
  const std::vector<Op>& ops = program.block(0).ops;
  return std::any_of(ops.begin(), ops.end(), [&](const Op& op) { return is_small(program, op, part); });
}

const Op* DenseLoops::maker(VarId var) const {
  const auto found = makers_.find(var);
  return found == makers_.end() ? nullptr : found->second;
}

/// Whether `x` is known to have as many slots, of as many rows, as `like`.
bool DenseLoops::is_as_long(VarId x, VarId like) const {
  if (x == like) return true;
  if (const Op* const made = maker(x); made != nullptr && made->type == "same_steps" && made->inputs[1] == like) return true;
  const VarType &a = program_.var(x).type, &b = program_.var(like).type;
  for (int axis = 0; axis < 2; ++axis)
    if ((*a.shape)[axis] == DDim::unknown || (*a.shape)[axis] != (*b.shape)[axis]) return false;
  return true;
}

bool DenseLoops::unstacks(DenseLoop& loop, const LoopForm::StepInput& input) const {
  if (!counts_slots(input.index) || input.boot != no_var || input.shrinks) return false;
  const Op* const made = maker(input.array);
  if (made == nullptr || made->type != "tensor_array_unstack" || made->attributes.get_or("axis", std::int64_t{0}) != 0) return false;
  const VarId x = made->inputs[0];
  const VarType& type = program_.var(x).type;
  if (type.rank() < 3 || (type.dtype != DType::f32 && type.dtype != DType::f64) || type.lod_depth > 0) return false;
  loop.inputs.push_back(x);
  return true;
}

std::optional<DenseLoop> DenseLoops::find(const Op& op) const {
  DenseLoop made;
  // The last counter has a reader, or the loop has a limit that may end it earlier.
  if (std::any_of(op.outputs.begin(), op.outputs.end(), [&](VarId output) { return reads_.contains(output); }) ||
      op.attributes.get_or("max_trips", std::int64_t{-1}) >= 0)
    return std::nullopt;
  try {
    made.form = find_loop_form(program_, 0, op);
  } catch (const UnsupportedError&) {
    return std::nullopt;
  }
  made.body = op.attributes.get<BlockId>("sub_block").index;
  const LoopForm& form = made.form;
  if (form.inputs.empty() || form.states.size() != 1 || form.outputs.empty() || form.outputs.size() > 2 ||
      !is_handed_on(program_, form.states[0]) || form.step.outputs().size() != form.outputs.size() + 1)
    return std::nullopt;
  for (const LoopForm::StepInput& input : form.inputs)
    if (!unstacks(made, input)) return std::nullopt;
  made.boot = form.states[0].boot;
  made.states = form.states[0].array;

  const LoopForm::Index& left = form.stop.left;
  for (std::size_t i = 0; i < form.inputs.size(); ++i)
    if ((left.stride == 1 || left.stride == -1) && left.roots.number == 0 &&
        left.roots.terms == Terms{{form.inputs[i].array, -left.stride}}) {
      made.counted = form.inputs[i].array;
      const auto as_long = [&, like = made.inputs[i]](VarId x) { return is_as_long(x, like); };
      if (!std::all_of(made.inputs.begin(), made.inputs.end(), as_long)) return std::nullopt;
      break;
    }
  if (made.counted == no_var) return std::nullopt;

  for (std::size_t i = 0; i < form.outputs.size(); ++i) {
    const LoopForm::Output& output = form.outputs[i];
    if (output.array == made.states) {
      if (!output.last_alone) return std::nullopt;
      made.next.push_back(form.step.outputs()[i].var);
      continue;
    }
    if (made.outputs != no_var || !counts_slots(output.index)) return std::nullopt;
    made.outputs = output.array;
    made.output = i;
  }
  made.next.push_back(form.step.outputs().back().var);
  if (made.outputs == no_var || !has_size(op, made.outputs, made.counted) || !is_read_as_expected(made)) return std::nullopt;
  return made;
}

bool DenseLoops::has_size(const Op& loop, VarId array, VarId steps) const {
  const auto size = OuterNumbers(program_, 0, loop).size_of(array);
  return size && size->stride == 0 && size->roots.number == 0 && size->roots.terms == Terms{{steps, 1}};
}

/// Whether readers outside the loop see the outputs stacked along axis 0 alone, and of the states the one behind the last iteration alone.
bool DenseLoops::is_read_as_expected(const DenseLoop& loop) const {
  const auto is_own = [&](VarId var) { return var == loop.outputs || var == loop.states; };
  for (const Block& block : program_.blocks()) {
    if (std::any_of(block.results.begin(), block.results.end(), is_own)) return false;
    for (const Op& op : block.ops)
      for (const VarId input : op.inputs) {
        if (!is_own(input) || block.idx == loop.body) continue;
        const bool stacks = op.type == "tensor_array_stack" && op.attributes.get_or("axis", std::int64_t{0}) == 0;
        const bool reads = op.type == "tensor_array_read" && op.inputs.size() > 2 && op.inputs[2] == loop.boot;
        if (block.idx != 0 || (input == loop.outputs ? !stacks : !reads)) return false;
      }
  }
  return !is_output(program_, loop.outputs) && !is_output(program_, loop.states);
}

void DenseLoops::empty(const DenseLoop& loop) {
  Block& body = program_.block(loop.body);
  body.ops.clear();
  body.results.clear();
  for (const LoopForm::StepInput& input : loop.form.inputs) arrays_.insert(input.array);
  arrays_.insert({loop.outputs, loop.states});
}

void DenseLoops::finish(std::vector<Op> made) {
  std::vector<Op>& ops = program_.block(0).ops;
  ops = std::move(made);
  std::map<VarId, int> reads = reads_of(program_);
  const auto may_go = [&](const Op& op) {
    const OpDef& def = program_.registry().at(op.type);
    const bool counts = op.type == "tensor_array_size" || (def.pure && def.prepare && !def.stores);
    return std::all_of(op.outputs.begin(), op.outputs.end(), [&](VarId output) {
      return reads[output] == 0 && (arrays_.contains(output) || (counts && is_integer_scalar(program_.var(output).type)));
    });
  };
  for (std::size_t i = ops.size(); i-- > 0;) {
    if (ops[i].inputs.empty() || ops[i].outputs.empty() || !may_go(ops[i])) continue;
    for (const VarId input : ops[i].inputs)
      if (input != no_var) --reads[input];
    ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace millrace::lowering
