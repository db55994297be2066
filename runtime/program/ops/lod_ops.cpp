// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/array/shrink.h>
#include <millrace/runtime/array/unpack.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/arrays.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/row_moves.h>
#include <millrace/runtime/program/ops/internal/rows.h>

namespace millrace::ops {
namespace {

OpDef drop_lod_op() {
  OpDef def = define("drop_lod", {"X"}, {"Out"});
  def.infer = [](InferContext& context) { context.result(tensor_type(context.tensor(0).dtype, context.tensor(0).shape)); };
  def.prepare = [](const PrepareContext&) -> OpKernel { return [](OpContext& run) { run.set(0, run.tensor(0)); }; };
  def.follow_rows = follow_same();
  def.vectorize = [](Vectorizer& v, const Op& op) { v.bind(op.outputs[0], v.get(op.inputs[0]), true); };
  def.passes_lod = false;
  return def;
}

// ---- unpack ----

std::int64_t lod_level(const Attributes& attributes) { return attributes.get_or("level", std::int64_t{0}); }

void infer_unpack(InferContext& context) {
  const VarType& x = context.tensor(0);
  const std::int64_t level = lod_level(context.attributes());
  if (level < 0 || level >= x.lod_depth) {
    std::string present;
    for (int at = 0; at < x.lod_depth; ++at) present += (at == 0 ? "" : ", ") + std::to_string(at);
    throw ProgramError("expected a level of LoD that is present (" + (present.empty() ? "there is none" : present) + "), found " +
                       std::to_string(level) + " for " + context.describe(0));
  }
  std::optional<DDim> slot = x.shape;
  if (slot && slot->rank() > 0) (*slot)[0] = DDim::unknown;
  VarType array = VarType::array_of(x.dtype, slot, true);
  array.lod_depth = x.lod_depth - static_cast<int>(level) - 1;
  context.result(std::move(array));
  context.result(VarType::order());
}

OpDef unpack_op(const char* name) {
  OpDef def = define(name, {"X"}, {"Array", "Order"}, {"level", "sort_by_length", "reverse"});
  def.infer = infer_unpack;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const int level = static_cast<int>(lod_level(context.attributes()));
    const bool sort = context.attributes().get_or("sort_by_length", true);
    const bool reverse = context.attributes().get_or("reverse", false);
    const std::string array_name = context.program().var(context.op().outputs.at(0)).name;
    return [level, sort, reverse, array_name](OpContext& run) {
      auto [array, order] = unpack(run.in(0).tensor(), level, sort, run.stream(), reverse);
      run.set(0, array.named(array_name));
      run.set(1, std::move(order));
    };
  };
  def.passes_lod = false;
  return def;
}

// ---- pack: run by array_ops.cpp ----

void infer_pack(InferContext& context) {
  const VarType& slot = slot_type(context, 0);
  expect_order(context, 1);
  const std::int64_t level = lod_level(context.attributes());
  if (level < 0) throw ProgramError("expected a level of 0 or more, found " + std::to_string(level));
  if (slot.rank() == 0) throw ProgramError("expected slots that have rows, found " + context.describe(0));
  VarType rows = tensor_type(slot.dtype, slot.shape);
  if (rows.shape) (*rows.shape)[0] = DDim::unknown;
  rows.lod_depth = static_cast<int>(level) + 1 + slot.lod_depth;
  context.result(std::move(rows));
}

OpDef pack_op(const char* name) {
  OpDef def = define(name, {"Array", "Order"}, {"Out"}, {"level"});
  def.infer = infer_pack;
  def.passes_lod = false;
  return def;
}

// ---- reorder_steps: run by array_ops.cpp ----

OpDef reorder_steps_op() {
  OpDef def = define("reorder_steps", {"Array", "From", "To"}, {"Out"}, {"kept", "spill"});
  def.infer = [](InferContext& context) {
    const VarType& array = array_type(context, 0);
    expect_order(context, 1);
    expect_order(context, 2);
    if (!array.ordered || array.lod_depth > 0)
      throw ProgramError("expected an array of rows that was made with an order, found " + context.describe(0));
    context.result(array);
  };
  def.passes_lod = false;
  return def;
}

// ---- shrink ----

void infer_shrink(InferContext& context) {
  const VarType& state = context.tensor(0);
  if (!context.tensor(1).ordered)
    throw ProgramError("expected a step that was read from an array made with an order, found " + context.describe(1) + " to shrink " +
                       context.describe(0) + " to");
  if (state.rank() == 0) throw ProgramError("expected a state that has rows, found " + context.describe(0));
  VarType rows = state;
  if (rows.shape) (*rows.shape)[0] = DDim::unknown;
  rows.ordered = true;
  context.result(std::move(rows));
}

OpDef shrink_op() {
  OpDef def = define("shrink", {"State", "Step"}, {"Out"});
  def.infer = infer_shrink;
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) { run.set(0, shrunk(run.in(0).tensor(), run.in(1).tensor(), run.stream())); };
  };
  def.passes_lod = false;
  return def;
}

}  // namespace

SlotValue shrunk(const SlotValue& state, const SlotValue& step, StreamRef stream) {
  if (state.has_order() || !step.has_order()) return shrink(state, step, stream);
  if (step.iteration() > 0) return shrink(state, step.order(), step.iteration() - 1, step.iteration(), stream);
  return shrink(reorder(state, step.order(), stream), step, stream);
}

void add_lod_ops(OpRegistry& registry) {
  registry.add(drop_lod_op());
  registry.add(unpack_op("unpack"));
  registry.add(unpack_op("split_lod_tensor_to_timesteps"));
  registry.add(pack_op("pack"));
  registry.add(pack_op("restore_lod_tensor_from_timesteps"));
  registry.add(reorder_steps_op());
  registry.add(shrink_op());
}

}  // namespace millrace::ops
