// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/block_backward.h>

#include <fmt/format.h>
#include <algorithm>

#include <millrace/runtime/autodiff/internal/activity.h>
#include <millrace/runtime/autodiff/internal/clone_block.h>
#include <millrace/runtime/autodiff/internal/forward_loop.h>
#include <millrace/runtime/autodiff/internal/in_block.h>
#include <millrace/runtime/autodiff/internal/memory_policy.h>
#include <millrace/runtime/autodiff/internal/recurrence_backward.h>
#include <millrace/runtime/autodiff/internal/runs_backward.h>
#include <millrace/runtime/autodiff/internal/segment_loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::autodiff {
namespace {

using Kind = ArrayGradient::Kind;

int body_of(const Op& loop) { return loop.attributes.get<BlockId>("sub_block").index; }

bool unpacks(const Op& op) { return op.type == "unpack" || op.type == "split_lod_tensor_to_timesteps"; }
bool packs(const Op& op) { return op.type == "pack" || op.type == "restore_lod_tensor_from_timesteps"; }

/// The level of the sequences that an order is of; −1 where no op of the program made it.
std::int64_t level_of(const Program& program, VarId order) {
  for (const Block& block : program.blocks())
    for (const Op& op : block.ops)
      if (unpacks(op) && op.outputs[1] == order) return op.attributes.get_or("level", std::int64_t{0});
  return -1;
}

/// Whether the iteration is the first one of a run of `every`, and another iteration comes before it.
VarId at_boundary(Program& program, VarId iteration, std::int64_t every) {
  const auto constant = [&](std::int64_t value) { return emit1(program, "constant", {}, {{"value", Tensor::scalar(value)}}); };
  const VarId first = emit1(program, "equal", {emit1(program, "mod", {iteration, constant(every)}), constant(0)});
  return emit1(program, "logical_and", {first, emit1(program, "greater", {iteration, constant(0)})}, {}, "at_boundary");
}

/// `x`, whose extents may differ from iteration to iteration.
VarId varying(Program& program, VarId x) {
  const VarDef& var = program.var(x);
  return var.type.rank() == 0 ? x : emit1(program, "identity", {x}, {{"varying", std::vector<std::int64_t>{}}}, std::string(var.name));
}

}  // namespace

BlockBackward::BlockBackward(Transform& transform, int block, BlockBackward* outer)
    : transform_(transform),
      block_(block),
      outer_(outer),
      sums_(
          transform.program, transform.active, [](VarId var) { return var; },
          block == 0 ? std::string() : " in the loop or branch of block " + std::to_string(block)) {}

void BlockBackward::refuse(const Op& op, const std::string& why) const {
  const std::string where = block_ == 0 ? "" : ", block " + std::to_string(block_);
  const std::string var = op.outputs.empty() ? "" : " '" + name(op.outputs[0]) + "'";
  throw UnsupportedError("append_backward: op " + op.type + var + where + ": " + why);
}

void BlockBackward::walk(const std::vector<Op>& ops) {
  for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
    if (op->type == "while")
      visit_while(*op);
    else if (op->type == "if")
      visit_if(*op);
    else if (op->type != "break_if" && !visit_array(*op) && !visit_rows(*op) && !visit_runs(*op))
      sums_.visit(*op);
  }
}

// ---- Arrays ----

bool BlockBackward::has_array(VarId array) const {
  const auto found = arrays_.find(array);
  if (found != arrays_.end() && !found->second.empty()) return true;
  return !local(array) && outer_ != nullptr && (own_reads_.contains(array) || outer_->has_array(array));
}

void BlockBackward::add_array(VarId array, const ArrayGradient& gradient) {
  if (!active(array)) return;
  if (!local(array) && outer_ != nullptr) import_list(array);
  arrays_[array].push_back(gradient);
}

const BlockBackward::Import* BlockBackward::find_import(VarId var) const {
  for (const Import& each : imports_)
    if (each.var == var) return &each;
  return nullptr;
}

/// A parameter of the backward loop.
VarId BlockBackward::import_param(VarId var, const VarType& type) {
  const VarId param = program().add_var("d_" + name(var), type, block_);
  program().block(block_).params.push_back(param);
  return param;
}

/// The list of an outer array as it is here before anything is added.
void BlockBackward::import_list(VarId array) {
  if (find_import(array) != nullptr) return;
  const VarId initial = in_block(outer_->block_, [&] { return outer_->list(array); });
  const VarId here = in_loop_ ? import_param(array, program().var(initial).type) : initial;
  imports_.push_back({array, here, initial, false});
  arrays_[array].push_back({Kind::list, here});
}

VarId BlockBackward::list_of(const ArrayGradient& gradient) {
  switch (gradient.kind) {
    case Kind::list: return gradient.var;
    case Kind::slots: return emit1(program(), "slot_gradients_of", {gradient.var});
    case Kind::slot: break;  // `list` adds it
    case Kind::packed: {
      const VarId slots = emit1(program(), "unpack_as", {gradient.var, gradient.order});
      return emit1(program(), "slot_gradients_of", {slots});
    }
    case Kind::last: {
      const std::vector<VarId> made = emit(program(), Op{"last_rows_gradient", {gradient.var, gradient.order}, {}, {}, {}});
      add(gradient.boot, made[1]);
      return made[0];
    }
  }
  return no_var;
}

VarId BlockBackward::list(VarId array) {
  if (!local(array) && outer_ != nullptr) import_list(array);
  const std::vector<ArrayGradient> terms = arrays_[array];
  VarId total = no_var;
  for (const ArrayGradient& term : terms) {
    if (term.kind == Kind::slot) {
      if (total == no_var) total = no_gradients(array);
      total = emit1(program(), "add_slot_gradient", {total, term.index, term.var}, {}, "d_" + name(array));
      continue;
    }
    const VarId next = list_of(term);
    total = total == no_var ? next : emit1(program(), "sum_slot_gradients", {total, next}, {}, "d_" + name(array));
  }
  if (total == no_var) total = no_gradients(array);
  set_list(array, total);
  return total;
}

/// A list of gradients as an array like `like`.
VarId BlockBackward::as_array(VarId gradients, VarId like) {
  const VarType type = program().var(like).type;
  Attributes slot{{"dtype", type.dtype}};
  if (type.shape) slot.set("shape", std::vector<std::int64_t>(type.shape->begin(), type.shape->end()));
  return emit1(program(), "slot_gradients_to_array", {gradients, like}, std::move(slot));
}

VarId BlockBackward::no_gradients(VarId array) {
  const VarType type = program().var(array).type;
  if (type.is_array()) return emit1(program(), "no_slot_gradients", {array}, {}, "d_" + name(array));
  const std::int64_t rank = type.shape ? type.rank() : -1;
  return emit1(program(), "no_slot_gradients", {}, {{"dtype", type.dtype}, {"rank", rank}}, "d_" + name(array));
}

/// True: the op works on arrays, and is done.
bool BlockBackward::visit_array(const Op& op) {
  if (op.type == "tensor_array" || op.type == "tensor_array_size" || op.type == "constant_rows") return true;
  if (op.type == "tensor_array_write" || op.type == "tensor_array_written") return visit_write(op), true;
  if (op.type == "tensor_array_read") return visit_read(op), true;
  if (op.type == "last_rows") return visit_last_rows(op), true;
  if (unpacks(op)) return visit_unpack(op), true;
  if (op.type == "reorder_steps") return visit_reorder_steps(op), true;
  const bool joins = packs(op) || op.type == "tensor_array_stack" || op.type == "tensor_array_concat";
  if (joins) {
    if (!active(op.inputs[0]) || !has(op.outputs[0])) return true;
    if (packs(op)) {
      add_array(op.inputs[0], {Kind::packed, sum_with_lod(op.outputs[0]), no_var, op.inputs[1]});
    } else if (op.type == "tensor_array_stack") {
      add_array(op.inputs[0], {Kind::slots, emit1(program(), "tensor_array_unstack", {sum(op.outputs[0])}, op.attributes)});
    } else {
      add_array(op.inputs[0], {Kind::list, emit1(program(), "concat_gradient", {sum(op.outputs[0]), op.inputs[0]})});
    }
    return true;
  }
  if (op.type == "join_runs") {
    if (active(op.inputs[0]) && has(op.outputs[0]))
      add_array(op.inputs[0], {Kind::list, emit1(program(), "join_runs_gradient", {sum(op.outputs[0]), op.inputs[0], op.inputs[1]})});
    return true;
  }
  if (op.type == "tensor_array_unstack") {
    if (active(op.inputs[0]) && has_array(op.outputs[0]) && !stacked_gradient(op))
      add(op.inputs[0], emit1(program(), "unstack_gradient", {list(op.outputs[0]), op.inputs[0]}, op.attributes));
    return true;
  }
  if (op.type == "tensor_array_split") {
    if (active(op.inputs[0]) && has_array(op.outputs[0])) {
      const VarId slots = as_array(op.outputs[0]);
      add(op.inputs[0], emit1(program(), "tensor_array_concat", {slots}));
    }
    return true;
  }
  if (visit_list(op)) return true;
  const VarId written = written_array(program(), op);
  if (written != no_var && active(written_value(program(), op)) && has_array(written)) refuse(op, "has no gradient rule");
  for (const VarId output : op.outputs)
    if (!program().var(output).type.is_tensor() && has_list(output)) refuse(op, "has no gradient rule");
  return written != no_var;
}

bool BlockBackward::visit_list(const Op& op) {
  if (op.type == "no_slot_gradients") return true;
  if (op.type == "slot_gradient") {
    const VarId given = sum(op.outputs[0]);
    if (given != no_var && active(op.inputs[0]))
      set_list(op.inputs[0],
               emit1(program(), "add_slot_gradient", {list(op.inputs[0]), op.inputs[1], given}, {}, "d_" + name(op.inputs[0])));
    return true;
  }
  if (op.type == "unstack_gradient") {
    if (has(op.outputs[0]))
      add_array(op.inputs[0], {Kind::slots, emit1(program(), "tensor_array_unstack", {sum(op.outputs[0])}, op.attributes)});
    return true;
  }
  if (op.type == "boot_gradient") {
    const VarId given = sum(op.outputs[0]);
    if (given == no_var || !active(op.inputs[0])) return true;
    const VarId moved =
        program().var(op.inputs[1]).type.ordered ? gather(given, emit1(program(), "reorder_rows", {op.inputs[3], op.inputs[1]})) : given;
    // Element 0 of a list is the gradient where the read was in front of slot 0; elsewhere it is missing.
    const auto constant = [&](std::int64_t value) { return emit1(program(), "constant", {}, {{"value", Tensor::scalar(value)}}); };
    const VarId place = emit1(program(), "minimum", {emit1(program(), "add", {op.inputs[2], constant(1)}), constant(1)});
    const VarId held = emit1(program(), "add_slot_gradient", {no_gradients(op.inputs[1]), place, moved});
    add(op.inputs[0], emit1(program(), "slot_gradient", {held, constant(0), op.inputs[0]}));
    return true;
  }
  if (op.type == "unpack_as") {
    if (!active(op.inputs[0]) || !has_array(op.outputs[0])) return true;
    const std::int64_t level = level_of(program(), op.inputs[1]);
    if (level < 0) refuse(op, "has no gradient rule for an order that no unpack of the program made");
    add(op.inputs[0], emit1(program(), "pack", {as_array(op.outputs[0]), op.inputs[1]}, {{"level", level}}));
    return true;
  }
  if (op.type == "last_rows_gradient") {
    const VarId list = op.outputs[0], boot = op.outputs[1];
    if (!active(op.inputs[0]) || (!has_list(list) && !has(boot))) return true;
    const VarId slots = has_list(list) ? this->list(list) : no_gradients(list);
    add(op.inputs[0], emit1(program(), "last_rows_of", {slots, op.inputs[1], has(boot) ? sum(boot) : zeros_like(program(), boot)}));
    return true;
  }
  if (op.type == "last_rows_of") {
    const VarId given = sum(op.outputs[0]);
    if (given == no_var) return true;
    const std::vector<VarId> made = emit(program(), Op{"last_rows_gradient", {given, op.inputs[1]}, {}, {}, {}});
    add_array(op.inputs[0], {Kind::list, made[0]});
    add(op.inputs[2], made[1]);
    return true;
  }
  const bool lists = op.type == "add_slot_gradient" || op.type == "sum_slot_gradients" || op.type == "slot_gradients_of" ||
                     op.type == "slot_gradients_to_array" || op.type == "concat_gradient" || op.type == "join_runs_gradient";
  if (!lists) return false;
  if (!has_list(op.outputs[0])) return true;
  const VarId given = list(op.outputs[0]);
  if (op.type == "concat_gradient") {
    if (active(op.inputs[0])) add(op.inputs[0], emit1(program(), "tensor_array_concat", {as_array(given, op.inputs[1])}));
    return true;
  }
  if (op.type == "join_runs_gradient") {
    if (active(op.inputs[0])) add(op.inputs[0], emit1(program(), "join_runs", {as_array(given, op.inputs[1]), op.inputs[2]}));
    return true;
  }
  if (op.type == "add_slot_gradient" && active(op.inputs[2]))
    add(op.inputs[2], emit1(program(), "slot_gradient", {given, op.inputs[1], op.inputs[2]}));
  add_array(op.inputs[0], {Kind::list, given});
  if (op.type == "sum_slot_gradients") add_array(op.inputs[1], {Kind::list, given});
  return true;
}

/// The gradient of `tensor_array_unstack` where that of the array is one of all slots. False, with nothing done, where it is not.
bool BlockBackward::stacked_gradient(const Op& unstack) {
  const std::vector<ArrayGradient> terms = arrays_[unstack.outputs[0]];
  if (!std::all_of(terms.begin(), terms.end(), [](const ArrayGradient& each) { return each.kind == Kind::slots; })) return false;
  for (const ArrayGradient& term : terms) add(unstack.inputs[0], emit1(program(), "tensor_array_stack", {term.var}, unstack.attributes));
  return true;
}

void BlockBackward::visit_write(const Op& op) {
  if (!active(op.inputs[2]) || !has_array(op.inputs[0])) return;
  add(op.inputs[2], emit1(program(), "slot_gradient", {list(op.inputs[0]), op.inputs[1], op.inputs[2]}));
}

void BlockBackward::visit_read(const Op& op) {
  const VarId given = sum(op.outputs[0]);
  if (given == no_var) return;
  if (active(op.inputs[0])) {
    const VarId flows = own_writes_.contains(op.inputs[0]) ? cut(given, op.outputs[0]) : given;
    if (local(op.inputs[0]) && op.inputs.size() > 2)
      add_array(op.inputs[0], {Kind::slot, flows, op.inputs[2], no_var, op.inputs[1]});  // perhaps a loop takes it: what it left
    else
      set_list(op.inputs[0],
               emit1(program(), "add_slot_gradient", {list(op.inputs[0]), op.inputs[1], flows}, {}, "d_" + name(op.inputs[0])));
  }
  if (op.inputs.size() > 2 && active(op.inputs[2]))
    add(op.inputs[2], emit1(program(), "boot_gradient", {given, op.inputs[0], op.inputs[1], op.inputs[2]}));
}

void BlockBackward::visit_unpack(const Op& op) {
  const VarId array = op.outputs[0];
  if (!active(op.inputs[0]) || !has_array(array)) return;
  const std::vector<ArrayGradient>& terms = arrays_[array];
  const bool packed = std::all_of(terms.begin(), terms.end(), [](const ArrayGradient& each) { return each.kind == Kind::packed; });
  if (packed) {
    for (const ArrayGradient& term : terms) add(op.inputs[0], term.var);
    return;
  }
  const VarId slots = as_array(array);
  const std::int64_t level = op.attributes.get_or("level", std::int64_t{0});
  add(op.inputs[0], emit1(program(), "pack", {slots, op.outputs[1]}, {{"level", level}}));
}

/// Packed rows are the same in both orders.
void BlockBackward::visit_reorder_steps(const Op& op) {
  const VarId made = op.outputs[0];
  if (!active(op.inputs[0]) || !has_array(made)) return;
  const std::vector<ArrayGradient> terms = arrays_[made];
  const bool packed = std::all_of(terms.begin(), terms.end(), [](const ArrayGradient& each) { return each.kind == Kind::packed; });
  if (packed) {
    for (const ArrayGradient& term : terms) add_array(op.inputs[0], {Kind::packed, term.var, no_var, op.inputs[1]});
    return;
  }
  const VarId slots = emit1(program(), "reorder_steps", {as_array(made), op.inputs[2], op.inputs[1]});
  add_array(op.inputs[0], {Kind::list, emit1(program(), "slot_gradients_of", {slots})});
}

void BlockBackward::visit_last_rows(const Op& op) {
  const VarId given = sum(op.outputs[0]);
  if (given == no_var) return;
  const ArrayGradient last{Kind::last, given, op.inputs[2], op.inputs[1]};
  if (active(op.inputs[0]))
    add_array(op.inputs[0], last);
  else
    list_of(last);
}

VarId BlockBackward::gather(VarId x, VarId rows) { return emit1(program(), "gather", {x, rows}, {{"axis", std::int64_t{0}}}); }

/// Ops that move rows by an order, and their gradients.
bool BlockBackward::visit_rows(const Op& op) {
  if (op.type == "shrink_gradient" || op.type == "reorder_gradient") {
    const VarId given = sum(op.outputs[0]);
    if (given == no_var || !active(op.inputs[0])) return true;
    const char* const rows = op.type == "shrink_gradient" ? "shrink_rows" : "reorder_rows";
    add(op.inputs[0], gather(given, emit1(program(), rows, {op.inputs[1], op.inputs[2]})));
    return true;
  }
  if (op.type != "shrink" && op.type != "reorder" && op.type != "same_steps") return false;
  const VarId given = sum(op.outputs[0]);
  if (given == no_var || !active(op.inputs[0])) return true;
  if (op.type == "same_steps")
    add(op.inputs[0], given);
  else
    add(op.inputs[0], emit1(program(), op.type + "_gradient", {given, op.inputs[0], op.inputs[1]}));
  return true;
}

// ---- Loops and branches ----

/// Nothing flows from the first iteration of a run to the one before.
VarId BlockBackward::cut(VarId gradient, VarId like) {
  if (boundary_ == no_var || gradient == no_var) return gradient;
  return emit1(program(), "where", {boundary_, zeros_like(program(), like), gradient});
}

/// Whether a gradient gets to anything that the op, whose block is `block`, makes.
bool BlockBackward::wanted(const Op& op, int block) const {
  for (const VarId output : op.outputs)
    if (has(output) || (arrays_.contains(output) && has_array(output))) return true;
  for (const Op& inner : program().block(block).ops) {
    const VarId array = written_array(program(), inner);
    if (array != no_var && program().visible(array, block_) && has_array(array)) return true;
    bool found = false;
    for_each_sub_block(inner, [&](int below) { found = found || wanted(inner, below); });
    if (found) return true;
  }
  return false;
}

/// A sum over iterations of loops in loops goes on from iteration to iteration, so that it has the same bits however iterations are grouped.
VarId BlockBackward::begin_sum(VarId var) {
  if (local(var) || !in_loop_) return varying(program(), zeros_like(program(), var));
  VarId here = no_var;
  if (const Import* known = find_import(var)) {
    here = known->here;
  } else {
    VarType type = program().var(var).type;
    type.ordered = false;
    type.lod_depth = 0;
    if (type.shape) type.shape = DDim(std::vector<std::int64_t>(static_cast<std::size_t>(type.rank()), DDim::unknown));
    here = import_param(var, type);
    imports_.push_back({var, here, no_var, true});
    if (has(var)) here = emit1(program(), "add", {here, sum(var)});
    return here;
  }
  return has(var) ? sum(var) : here;
}

void BlockBackward::end_sum(VarId var, VarId total) {
  if (find_import(var) == nullptr) return add(var, total);
  sums_.replace(var, total);
}

void BlockBackward::visit_while(const Op& op) {
  const int body = body_of(op);
  if (!wanted(op, body) || visit_recurrence(op, body)) return;
  const MemoryPolicy memory = policy_of(op);
  const bool of_runs = goes_over_runs(program(), body);
  if (memory.kind == MemoryPolicy::Kind::truncate && of_runs)
    refuse(op,
           "recompute has cut the loop into runs of iterations, which truncate does not take: truncate it in the first call, or keep it "
           "there");
  if (memory.kind == MemoryPolicy::Kind::truncate && memory.k1 != memory.k2)
    refuse(op, "memory policy truncate with other k2 than k1 is there for recurrences over ragged rows");
  if (memory.kind != MemoryPolicy::Kind::recompute || op.attributes.has("segment") || of_runs) return visit_any_while(op, body);
  const Op outer = segment_loop(program(), body, memory.every, transform_.active);
  visit_any_while(outer, body_of(outer));
}

bool BlockBackward::visit_recurrence(const Op& op, int body) {
  for (const VarId output : op.outputs)
    if (has(output)) return false;
  try {
    Program made = program();
    const LoopGradients found = recurrence_backward(made, transform_.active, body, arrays_, policy_of(op));
    program() = std::move(made);
    for (const auto& [var, gradient] : found.tensors) add(var, gradient);
    for (const auto& [array, gradient] : found.arrays) add_array(array, gradient);
    return true;
  } catch (const UnsupportedError&) {
    return false;  // its backward keeps to the general form
  }
}

BlockBackward::Inner BlockBackward::take_inner() {
  Inner made{block_, {}, {}};
  for (const VarId var : sums_.vars())
    if (!local(var)) made.tensors.emplace_back(var, sum(var));
  for (const Import& each : imports_)
    if (!each.sum) made.lists.emplace_back(each.var, list(each.var));
  return made;
}

void BlockBackward::visit_any_while(const Op& op, int body) {
  ForwardLoop forward(program(), body, transform_.active, policy_of(op));
  const int back = program().add_block(block_);
  BlockBackward inside(transform_, back, this);
  inside.in_loop_ = true;
  inside.own_reads_ = forward.arrays_read();
  const std::vector<bool> live = forward.live_carried([&](VarId output) { return has(output); },
                                                      [&](VarId array) { return program().visible(array, block_) && has_array(array); });
  std::vector<VarId> initial{forward.trips()};
  std::vector<VarId> results;
  const auto add_param = [&](VarId start, const std::string& called) {
    VarType type = program().var(start).type;
    type.ordered = false;
    const VarId param = program().add_var(called, type, back);
    program().block(back).params.push_back(param);
    initial.push_back(start);
    return param;
  };
  const VarId left = program().add_var("iterations_left", VarType(DType::i64, DDim{}), back);
  program().block(back).params.push_back(left);
  std::vector<VarId> carried(op.inputs.size(), no_var);
  for (std::size_t i = 0; i < carried.size(); ++i) {
    if (!live[i]) continue;
    const VarId given = sum(op.outputs[i]);
    carried[i] = add_param(varying(program(), given == no_var ? zeros_like(program(), op.outputs[i]) : given), "d_" + name(op.inputs[i]));
  }
  std::vector<std::pair<std::size_t, VarId>> lists;  // carried, and what stands for their gradients in the backward loop
  for (std::size_t i = 0; i < carried.size(); ++i) {
    const VarId param = program().block(body).params[i];
    if (program().var(param).type.is_list() && active(param) && !forward.invariant(i))
      lists.emplace_back(i, add_param(list(op.outputs[i]), "d_" + name(op.inputs[i])));
  }
  VarId iteration = no_var;
  std::vector<VarId> values;  // the parameters of the forward body in this iteration
  std::map<VarId, VarId> copies;
  Inner made;
  in_block(back, [&] {
    iteration =
        emit1(program(), "sub", {left, emit1(program(), "constant", {}, {{"value", Tensor::scalar<std::int64_t>(1)}})}, {}, "iteration");
    values = forward.stand_ins(back, copies);
    if (const MemoryPolicy memory = policy_of(op); memory.kind == MemoryPolicy::Kind::truncate) {
      inside.boundary_ = at_boundary(program(), iteration, memory.k1);
      inside.own_writes_ = forward.arrays_written();
    }
    const std::vector<Op> ops = clone_ops(program(), body, back, copies, transform_.active);
    const std::vector<VarId> next = program().block(body).results;
    const auto here = [&](VarId var) { return copies.contains(var) ? copies.at(var) : var; };
    for (std::size_t i = 0; i < carried.size(); ++i)
      if (carried[i] != no_var) inside.add(here(next[i]), carried[i]);
    for (const auto& [i, gradient] : lists) inside.add_array(here(next[i]), {Kind::list, gradient});
    inside.walk(ops);
    results.push_back(iteration);
    for (std::size_t i = 0; i < carried.size(); ++i) {
      if (carried[i] == no_var) continue;
      const VarId given = inside.cut(inside.sum(values[i]), values[i]);
      results.push_back(given == no_var ? zeros_like(program(), values[i]) : given);
    }
    for (const auto& [i, gradient] : lists) results.push_back(inside.list(values[i]));
    made = inside.take_inner();
  });
  // Imports were given parameters as they came up; the other sums over the iterations follow them.
  const auto gradient_of = [&](VarId var, bool sum) {
    for (const auto& [found, gradient] : sum ? made.tensors : made.lists)
      if (found == var) return gradient;
    return no_var;
  };
  for (const Import& each : inside.imports_) {
    initial.push_back(each.sum ? begin_sum(each.var) : each.initial);
    results.push_back(gradient_of(each.var, each.sum));
  }
  for (const auto& [var, gradient] : made.tensors) {
    if (inside.find_import(var) != nullptr) continue;
    const VarId total = add_param(begin_sum(var), "d_" + name(var));
    results.push_back(in_block(back, [&, term = gradient] { return emit1(program(), "add", {total, term}); }));
  }
  program().block(back).results = results;
  forward.take_list_reads(back, copies);
  drop_dead_ops(program(), back);
  forward.give_values(back, left, iteration, values);
  Op loop{
      "while", initial, {}, {{"sub_block", BlockId{back}}, {"max_trips", std::int64_t{-1}}, {"parallel_iterations", std::int64_t{1}}}, {}};
  std::vector<std::string> names;
  for (const VarId var : program().block(back).params) names.push_back(name(var));
  const std::vector<VarId> last = emit(program(), std::move(loop), names);
  const auto tensors = static_cast<std::size_t>(std::count_if(carried.begin(), carried.end(), [](VarId var) { return var != no_var; }));
  std::size_t at = 1 + tensors + lists.size();
  for (const Import& each : inside.imports_) {
    if (each.sum)
      end_sum(each.var, last[at++]);
    else
      set_list(each.var, last[at++]);
  }
  for (const auto& [var, gradient] : made.tensors)
    if (inside.find_import(var) == nullptr) end_sum(var, last[at++]);
  // These are added after the ends of the sums, each of which replaces the gradient that was there when its sum began.
  at = 1;
  for (std::size_t i = 0; i < carried.size(); ++i)
    if (carried[i] != no_var) add(op.inputs[i], last[at++]);
  for (const auto& [i, gradient] : lists) add_array(op.inputs[i], {Kind::list, last[at++]});
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (!forward.invariant(i)) continue;
    add(op.inputs[i], sum(op.outputs[i]));
    if (!program().var(op.inputs[i]).type.is_tensor() && arrays_.contains(op.outputs[i]) && has_array(op.outputs[i]))
      add_array(op.inputs[i], {Kind::list, list(op.outputs[i])});
  }
}

BlockBackward::Inner BlockBackward::branch(const Op& op, const char* attribute) {
  const int from = op.attributes.get<BlockId>(attribute).index;
  const int back = program().add_block(block_);
  BlockBackward inside(transform_, back, this);
  return in_block(back, [&] {
    std::map<VarId, VarId> copies;
    const std::vector<Op> ops = clone_ops(program(), from, back, copies, transform_.active);
    const std::vector<VarId> results = program().block(from).results;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const VarId here = copies.contains(results[i]) ? copies.at(results[i]) : results[i];
      if (has(op.outputs[i])) inside.add(here, sum(op.outputs[i]));
      if (has_list(op.outputs[i])) inside.add_array(here, {Kind::list, list(op.outputs[i])});
    }
    inside.walk(ops);
    return inside.take_inner();
  });
}

void BlockBackward::visit_if(const Op& op) {
  if (!wanted(op, op.attributes.get<BlockId>("then_block").index) && !wanted(op, op.attributes.get<BlockId>("else_block").index)) return;
  for (const VarId output : op.outputs)
    if (has(output))
      sum(output);  // once, in front of both branches
    else if (has_list(output))
      list(output);
  Inner made[] = {branch(op, "then_block"), branch(op, "else_block")};
  std::vector<VarId> tensors;
  std::vector<VarId> lists;
  const auto collect = [](std::vector<VarId>& all, const std::vector<std::pair<VarId, VarId>>& some) {
    for (const auto& [var, gradient] : some)
      if (std::find(all.begin(), all.end(), var) == all.end()) all.push_back(var);
  };
  for (const Inner& each : made) {
    collect(tensors, each.tensors);
    collect(lists, each.lists);
  }
  for (const Inner& each : made) {
    const auto of = [](const std::vector<std::pair<VarId, VarId>>& some, VarId var) {
      for (const auto& [found, gradient] : some)
        if (found == var) return gradient;
      return no_var;
    };
    std::vector<VarId> results;
    for (const VarId var : tensors) {
      VarId gradient = of(each.tensors, var);
      if (gradient == no_var) gradient = in_block(each.block, [&] { return zeros_like(program(), var); });
      results.push_back(gradient);
    }
    for (const VarId array : lists) {
      const VarId gradient = of(each.lists, array);
      results.push_back(gradient == no_var ? list(array) : gradient);
    }
    program().block(each.block).results = results;
    drop_dead_ops(program(), each.block);
  }
  if (tensors.empty() && lists.empty()) return;
  Op back{"if", {op.inputs[0]}, {}, {{"then_block", BlockId{made[0].block}}, {"else_block", BlockId{made[1].block}}}, {}};
  const std::vector<VarId> found = emit(program(), std::move(back));
  for (std::size_t i = 0; i < tensors.size(); ++i) add(tensors[i], found[i]);
  for (std::size_t i = 0; i < lists.size(); ++i) set_list(lists[i], found[tensors.size() + i]);
}

}  // namespace millrace::autodiff
