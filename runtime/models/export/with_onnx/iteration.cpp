// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/export/with_onnx/iteration.h>

#include <algorithm>

#include <millrace/runtime/program/op_registry.h>
#include <millrace/tensor/error.h>

/// The form of a loop in ONNX: the end of its test, the forms of its arrays, whether it scans.
namespace millrace::exporting {

using Form = ArrayState::Form;

namespace {

/// `f(op)` for each op of a block and of the blocks inside.
template <class F>
void for_each_op(const Program& program, const Block& block, const F& f) {
  for (const Op& op : block.ops) {
    f(op);
    for (const auto& [name, attribute] : op.attributes)
      if (const auto* inner = std::get_if<BlockId>(&attribute)) for_each_op(program, program.block(inner->index), f);
  }
}

/// Ops that cut or join along axes that they name.
const std::set<std::string> along_axes = {"concat", "list_concat", "pad", "slice", "split"};
/// Ops whose extents are values, or numbers of elements.
const std::set<std::string> of_values = {"pad_by",
                                         "slice_by",
                                         "tile",
                                         "expand",
                                         "range",
                                         "constant_of_shape",
                                         "reshape_to",
                                         "non_zero",
                                         "list_stack",
                                         "tensor_array_stack",
                                         "tensor_array_concat"};

/// Whether an op of the type may have other extents than its first input.
bool may_change_extents(const std::string& type) {
  return along_axes.contains(type) || of_values.contains(type) || type == "gather" || type == "matmul" || type == "gemm";
}

/// Whether the loop begins with a known number of rows, of which no later iteration is sure.
bool widens(const VarType& first, const VarType& carried) {
  return first.rank() > 0 && (*first.shape)[0] != DDim::unknown && (*carried.shape)[0] == DDim::unknown;
}

}  // namespace

Exporter::Iteration Exporter::plan(const Op& op) {
  Iteration iteration;
  const int index = op.attributes.get<BlockId>("sub_block").index;
  iteration.body = &program_.block(index);
  iteration.max_trips = op.attributes.get_or("max_trips", std::int64_t{-1});
  const std::int64_t condition = op.attributes.get_or("condition", std::int64_t{-1});
  if (condition >= 0) iteration.condition = iteration.body->params[static_cast<std::size_t>(condition)];
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const VarId param = iteration.body->params[i];
    if (is_value(type(param))) {
      iteration.carried.push_back(i);
      const Tensor* first = program_.constant(op.inputs[i]);
      const std::optional<Place> next = place_of(iteration.body->results[i]);
      const bool counts = first != nullptr && first->elements() == 1 && !is_floating(first->dtype()) && first->item_int() == 0 && next &&
                          next->counter == param && next->offset == 1;
      if (counts && iteration.counter == no_var) iteration.counter = param;
    } else if (root(iteration.body->results[i]) != root(param)) {
      throw UnsupportedError("carries an array that is another one in the next iteration");
    }
  }
  find_test(iteration);
  find_roles(iteration, index);
  find_scan(op, iteration);
  return iteration;
}

/// As the executor finds it (executable.cpp).
void Exporter::find_test(Iteration& iteration) const {
  std::set<VarId> unused;
  const Block& body = *iteration.body;
  bool open = true;
  for (std::size_t i = 0; i < body.ops.size(); ++i) {
    const Op& op = body.ops[i];
    if (op.type != "break_if") {
      if (program_.registry().at(op.type).stores || op.type == "while" || op.type == "if") open = false;
      unused.insert(op.outputs.begin(), op.outputs.end());
      continue;
    }
    std::set<VarId> needed{op.inputs[0]};
    for (std::size_t before = i; before-- > 0;) {
      const Op& maker = body.ops[before];
      if (std::none_of(maker.outputs.begin(), maker.outputs.end(), [&](VarId output) { return needed.contains(output); })) continue;
      needed.insert(maker.inputs.begin(), maker.inputs.end());
      for (const VarId output : maker.outputs) unused.erase(output);
    }
    open = open && unused.empty() && std::equal(op.inputs.begin() + 1, op.inputs.end(), body.params.begin(), body.params.end());
    if (open)
      iteration.test = i + 1;
    else
      iteration.leaves_late = true;
  }
}

void Exporter::find_roles(Iteration& iteration, int index) {
  for (const VarId each : mutated(index)) {
    VarId boot = no_var;
    if (!iteration.leaves_late && becomes_output(iteration, each, boot)) {
      iteration.outputs.insert(each);
      if (boot != no_var) iteration.lagged.emplace_back(each, boot);
    } else {
      iteration.general.insert(each);
    }
  }
}

/// Whether the slots of an array are joined by their rows, of which each may have another number: there is no tensor of all of them.
bool Exporter::may_differ_in_rows(VarId of) const {
  const VarType& slot = type(of);
  if (slot.ordered || (slot.shape && (slot.rank() == 0 || (*slot.shape)[0] != DDim::unknown))) return false;
  bool joined = false;
  for_each_op(program_, program_.block(0),
              [&](const Op& op) { joined = joined || (op.type == "tensor_array_concat" && root(op.inputs[0]) == of); });
  return joined;
}

/// Nothing was written to the array before; the body itself writes it once an iteration, at the counter, and reads nothing of it but the slot
/// of the step before, with a boot from around the loop.
bool Exporter::becomes_output(const Iteration& iteration, VarId of, VarId& boot) {
  if (array(of).form != Form::unwritten || iteration.counter == no_var || may_differ_in_rows(of)) return false;
  int writes = 0;
  bool good = true;
  for_each_op(program_, *iteration.body, [&](const Op& op) {
    if (op.inputs.empty() || op.inputs[0] == no_var || type(op, 0).is_tensor() || root(op.inputs[0]) != of) return;
    if (op.type == "tensor_array_write" || op.type == "tensor_array_append") {
      ++writes;
      if (op.type == "tensor_array_append") return;
      const std::optional<Place> place = place_of(op.inputs[1]);
      good = good && place && place->counter == iteration.counter && place->offset == 0;
    } else if (op.type == "tensor_array_read") {
      const std::optional<Place> place = place_of(op.inputs[1]);
      const bool before = place && place->counter == iteration.counter && place->offset == -1 && has(op, 2);
      good = good && before && (boot == no_var || boot == op.inputs[2]) && program_.visible(op.inputs[2], iteration.body->parent_idx);
      if (before) boot = op.inputs[2];
    } else if (op.type != "tensor_array_size") {
      good = good && op.type == "identity";
    }
  });
  const auto here = std::count_if(iteration.body->ops.begin(), iteration.body->ops.end(), [&](const Op& op) {
    return (op.type == "tensor_array_write" || op.type == "tensor_array_append") && root(op.inputs[0]) == of;
  });
  return good && writes == 1 && here == 1;
}

// ---- Scan ----

/// The var that stands for all with as many rows as `var`, as far as ops say so.
VarId Exporter::length_key(VarId var, int depth) const {
  const Op* made = maker(var);
  if (made == nullptr || depth > 64) return var;
  if (made->type == "same_steps") return length_key(made->inputs[1], depth + 1);
  if (made->type == "reverse" || made->type == "identity" || made->type == "stop_gradient" || made->type == "cast")
    return length_key(made->inputs[0], depth + 1);
  return var;
}

/// Vars with as many slots as an array, or as many as `n` says.
std::set<VarId> Exporter::slot_keys(VarId var, int depth) const {
  const Op* made = maker(type(var).is_tensor() ? var : root(var));
  if (made == nullptr || depth > 64) return {};
  if (made->type == "unpack" || made->type == "split_lod_tensor_to_timesteps") return {length_key(made->inputs[0])};
  if (made->type == "tensor_array_unstack" && made->attributes.get_or("axis", std::int64_t{0}) == 0) return {length_key(made->inputs[0])};
  if (made->type == "tensor_array_unstack") return {root(var)};
  if (made->type == "tensor_array" && has(*made, 0)) return slot_keys(made->inputs[0], depth + 1);
  if (made->type == "tensor_array_size" || made->type == "identity") return slot_keys(made->inputs[0], depth + 1);
  if (made->type != "maximum") return {};
  std::set<VarId> both = slot_keys(made->inputs[0], depth + 1);
  both.merge(slot_keys(made->inputs[1], depth + 1));
  return both;
}

/// Whether the op gives an extent that is not known and may be another one than those of its inputs.
bool Exporter::changes_extents(const Op& op) const {
  const bool cuts = along_axes.contains(op.type);
  if (!cuts && !of_values.contains(op.type)) return false;
  const VarType& made = type(op.outputs[0]);
  if (!made.shape) return true;
  const auto is_open = [&](std::int64_t axis) {
    return (*made.shape)[static_cast<int>(axis < 0 ? axis + made.rank() : axis)] == DDim::unknown;
  };
  Ints axes;
  if (op.type == "pad") {
    const Ints pads = op.attributes.get<Ints>("pads");
    for (std::size_t i = 0; i < pads.size(); ++i)
      if (pads[i] != 0) axes.push_back(static_cast<std::int64_t>(i) % made.rank());
  } else if (op.type == "slice" && op.attributes.has("axes")) {
    axes = op.attributes.get<Ints>("axes");
  } else if (cuts && op.type != "slice") {
    axes.push_back(op.attributes.get_or("axis", std::int64_t{0}));
  } else {
    for (int axis = 0; axis < made.rank(); ++axis) axes.push_back(axis);
  }
  return std::any_of(axes.begin(), axes.end(), is_open);
}

/// Whether an op from which the next value of a carried tensor is made changes extents: `o = concat(o, h)`.
bool Exporter::made_of_changes(const Iteration& iteration, VarId next) const {
  std::set<VarId> needed{next};
  bool changes = false;
  for (auto op = iteration.body->ops.rbegin(); op != iteration.body->ops.rend(); ++op) {
    if (std::none_of(op->outputs.begin(), op->outputs.end(), [&](VarId output) { return needed.contains(output); })) continue;
    changes = changes || changes_extents(*op);
    needed.insert(op->inputs.begin(), op->inputs.end());
    for (const auto& [name, attribute] : op->attributes)
      if (const auto* block = std::get_if<BlockId>(&attribute))
        for_each_op(program_, program_.block(block->index), [&](const Op& inner) {
          changes = changes || changes_extents(inner);
          needed.insert(inner.inputs.begin(), inner.inputs.end());
        });
  }
  return changes;
}

/// Whether what is carried are tensors with the same extents in every iteration, which ONNX's Scan wants.
bool Exporter::keeps_extents(const Op& op, const Iteration& iteration) const {
  bool open = false;
  for (const std::size_t i : iteration.carried) {
    const VarType& of = type(iteration.body->params[i]);
    const VarType& next = type(iteration.body->results[i]);
    if (!of.is_tensor() || !of.shape || !next.shape) return false;
    for (int axis = 0; axis < of.rank(); ++axis) open = open || (axis > 0 && (*of.shape)[axis] == DDim::unknown);
    // The rows of one sequence are one; others may be more in the next iteration.
    if (of.rank() == 0 || (*of.shape)[0] != DDim::unknown) continue;
    if (widens(type(op, i), of) || made_of_changes(iteration, iteration.body->results[i])) return false;
  }
  bool changes = false;
  for_each_op(program_, *iteration.body, [&](const Op& each) { changes = changes || may_change_extents(each.type); });
  return !open || !changes;
}

/// One test, `counter == n` or `counter >= n`, where n is the number of slots of arrays that the body reads at the counter.
void Exporter::find_scan(const Op& loop, Iteration& iteration) {
  if (iteration.counter == no_var || iteration.leaves_late || iteration.condition != no_var || iteration.max_trips >= 0 ||
      iteration.test == 0 || !iteration.general.empty())
    return;
  if (!keeps_extents(loop, iteration)) return;
  VarId n = no_var;
  for (std::size_t i = 0; i < iteration.test; ++i) {
    const Op& op = iteration.body->ops[i];
    if (op.type != "break_if") continue;
    const Op* test = maker(op.inputs[0]);
    if (n != no_var || test == nullptr || (test->type != "equal" && test->type != "greater_equal")) return;
    const bool first = test->inputs[0] == iteration.counter;
    if (!first && (test->type != "equal" || test->inputs[1] != iteration.counter)) return;
    n = test->inputs[first ? 1 : 0];
  }
  if (n == no_var || !program_.visible(n, iteration.body->parent_idx)) return;
  const std::set<VarId> keys = slot_keys(n, 0);
  for_each_op(program_, *iteration.body, [&](const Op& op) {
    if (op.type != "tensor_array_read" || iteration.outputs.contains(root(op.inputs[0]))) return;
    const std::optional<Place> place = place_of(op.inputs[1]);
    if (!place || place->counter != iteration.counter || place->offset != 0 ||
        !program_.visible(root(op.inputs[0]), iteration.body->parent_idx))
      return;
    const std::set<VarId> own = slot_keys(op.inputs[0], 0);
    const bool as_long = std::any_of(own.begin(), own.end(), [&](VarId key) { return keys.contains(key); });
    if (as_long && array(op.inputs[0]).form == Form::stacked) iteration.sliced.insert(root(op.inputs[0]));
  });
  iteration.scan = !iteration.sliced.empty();
}

}  // namespace millrace::exporting
