// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/fill.h>
#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/arrays.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/runtime/program/vectorize.h>
#include <millrace/tensor/copy.h>

/// Ops of recurrent sugar, besides loops and arrays.
namespace millrace::ops {
namespace {

OpDef op_of(const char* name, std::vector<std::string> inputs, void (*infer)(InferContext&), std::vector<std::string> attributes = {}) {
  OpDef def = define(name, std::move(inputs), {"Out"}, std::move(attributes));
  def.infer = infer;
  def.passes_lod = false;
  return def;
}

// ---- reorder ----

void infer_reorder(InferContext& context) {
  expect_order(context, 1);
  VarType x = context.tensor(0);
  if (x.rank() == 0) throw ProgramError("expected rows, one for each sequence, found " + context.describe(0));
  x.ordered = true;
  context.result(std::move(x));
}

OpDef reorder_op() {
  OpDef def = op_of("reorder", {"X", "Order"}, infer_reorder);
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) { run.set(0, reorder(run.in(0).tensor(), run.in(1).order(), run.stream())); };
  };
  return def;
}

// ---- constant_rows ----

DDim rows_of(std::int64_t count, const Attributes& attributes) {
  Ints extents{count};
  for (const std::int64_t extent : attributes.get_or("shape", Ints{})) {
    if (extent < 0) throw ProgramError("attribute 'shape': expected extents of 0 or more, found " + std::to_string(extent));
    extents.push_back(extent);
  }
  return DDim(extents);
}

OpDef constant_rows_op() {
  OpDef def = op_of("constant_rows", {"Order"}, [](InferContext& context) {
    expect_order(context, 0);
    context.result(VarType(context.attributes().get_or("dtype", DType::f32), rows_of(DDim::unknown, context.attributes())));
  });
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const double number = context.attributes().get_or("value", 0.0);
    return [number, dtype = context.attributes().get_or("dtype", DType::f32), attributes = context.attributes()](OpContext& run) {
      run.set(0, full(rows_of(run.in(0).order().sequences(), attributes), number, dtype, run.stream()));
    };
  };
  def.attributes = {"dtype", "shape", "value"};
  return def;
}

// ---- same_steps ----

constexpr std::int64_t time_first = -1;

void infer_same_steps(InferContext& context) {
  const std::int64_t level = context.attributes().get_or("level", std::int64_t{0});
  for (const std::size_t input : {0, 1}) {
    const VarType& type = context.tensor(input);
    if (level == time_first && (type.lod_depth > 0 || type.rank() == 0))
      throw ProgramError("expected [T, …] without LoD, found " + context.describe(input));
    if (level != time_first && (level < 0 || level >= type.lod_depth))
      throw ProgramError("expected level " + std::to_string(level) + " of LoD in " + context.describe(input));
  }
  if (level == time_first) {
    const int axes = std::min({context.tensor(0).rank(), context.tensor(1).rank(), 2});
    for (int axis = 0; axis < axes; ++axis)
      same_extent(extent(context, 0, axis), extent(context, 1, axis), axis == 0 ? "steps" : "sequences of a step");
  }
  context.result(context.tensor(0));
}

/// LoDError, naming both, unless the sequences of `level` have equal lengths in both.
void check_lengths(const OpContext& run, std::int64_t level, const std::string& x, const std::string& like) {
  const auto upto = static_cast<int>(level) + 1;
  if (run.lod(0).levels(0, upto) == run.lod(1).levels(0, upto)) return;
  throw LoDError("step inputs: expected sequences of equal lengths at level " + std::to_string(level) + ", found '" + like + "' with " +
                 run.lod(1).brief() + " and '" + x + "' with " + run.lod(0).brief());
}

void check_extents(const OpContext& run, const std::string& x, const std::string& like) {
  const DDim& found = run.tensor(0).dims();
  const DDim& wanted = run.tensor(1).dims();
  for (int axis = 0; axis < std::min({found.rank(), wanted.rank(), 2}); ++axis)
    if (found[axis] != wanted[axis])
      throw ShapeError(std::string("step inputs: expected as many ") + (axis == 0 ? "steps" : "sequences") + ", found '" + like + "' of " +
                       wanted.to_string() + " and '" + x + "' of " + found.to_string());
}

OpDef same_steps_op() {
  OpDef def = op_of("same_steps", {"X", "Like"}, infer_same_steps, {"level"});
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const std::int64_t level = context.attributes().get_or("level", std::int64_t{0});
    const std::string x = context.program().var(context.op().inputs.at(0)).name;
    const std::string like = context.program().var(context.op().inputs.at(1)).name;
    return [level, x, like](OpContext& run) {
      if (level == time_first)
        check_extents(run, x, like);
      else
        check_lengths(run, level, x, like);
      run.set(0, run.in(0));
    };
  };
  def.follow_rows = [](const InferContext&, const std::vector<int>& axes) -> std::vector<int> {
    if (axes[0] != axes[1]) refuse_rows("compares the steps of a live input with those of one that is not");
    return {axes[0]};
  };
  def.vectorize = [](Vectorizer& v, const Op& op) { v.bind(op.outputs[0], v.get(op.inputs[0]), v.batched(op.inputs[0])); };
  return def;
}

// ---- step_mask ----

void infer_step_mask(InferContext& context) {
  expect_index(context, 1);
  expect_rank(context, 1, 1);
  if (context.tensor(0).lod_depth > 0 || (context.tensor(0).shape && context.tensor(0).rank() < 2))
    throw ProgramError("expected [T, N, …] without LoD, found " + context.describe(0));
  const std::int64_t sequences = same_extent(extent(context, 0, 1), extent(context, 1, 0), "sequences and lengths");
  context.result(VarType(DType::boolean, DDim{extent(context, 0, 0), sequences, 1}));
}

void run_step_mask(OpContext& run) {
  const std::vector<std::int64_t> lengths = run.integers(1);
  const std::int64_t steps = run.tensor(0).dim(0);
  const std::int64_t sequences = run.tensor(0).dim(1);
  if (std::cmp_not_equal(lengths.size(), sequences))
    throw ShapeError("expected a length for each of " + std::to_string(sequences) + " sequences, found " + std::to_string(lengths.size()));
  Tensor mask(DType::boolean, DDim{steps, sequences, 1});
  bool* to = mask.mutable_data<bool>();
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    if (lengths[s] < 0 || lengths[s] > steps)
      throw IndexError("expected lengths of 0 to " + std::to_string(steps) + ", found " + std::to_string(lengths[s]) + " for sequence " +
                       std::to_string(s));
    for (std::int64_t t = 0; t < steps; ++t) to[t * sequences + static_cast<std::int64_t>(s)] = t < lengths[s];
  }
  if (run.stream().place().is_cpu()) return run.set(0, std::move(mask));
  Tensor there(mask.dtype(), mask.dims(), run.stream().memory());
  copy(mask, there, run.stream());
  run.set(0, std::move(there));
}

OpDef step_mask_op() {
  OpDef def = op_of("step_mask", {"X", "Lengths"}, infer_step_mask);
  def.prepare = [](const PrepareContext&) -> OpKernel { return run_step_mask; };
  def.host_inputs = {1};
  def.follow_rows = [](const InferContext&, const std::vector<int>& axes) -> std::vector<int> {
    if (axes[0] >= 0 || axes[1] >= 0) refuse_rows("tells which steps lie behind the end of a sequence");
    return {-1};
  };
  def.vectorize = [](Vectorizer& v, const Op& op) { expect_shared(v, op, 1, "lengths"); };
  return def;
}

// ---- last_rows: run by array_ops.cpp ----

void infer_last_rows(InferContext& context) {
  const VarType& slot = slot_type(context, 0);
  expect_order(context, 1);
  const VarType& boot = context.tensor(2);
  if (slot.lod_depth > 0 || boot.lod_depth > 0)
    throw ProgramError("expected a state of one row for each sequence, found " + context.describe(slot.lod_depth > 0 ? 0 : 2));
  VarType row = slot.shape ? VarType(slot.dtype, *slot.shape) : VarType::unranked(slot.dtype);
  if (slot.dtype != boot.dtype || slot.rank() == 0 || (row.rank() > 0 && boot.rank() > 0 && row.rank() != boot.rank()))
    throw ProgramError("expected a boot like the slots of " + context.describe(0) + ", found " + context.describe(2));
  if (row.rank() > 0) (*row.shape)[0] = extent(context, 2, 0);
  context.result(std::move(row));
}

}  // namespace

void add_recurrent_ops(OpRegistry& registry) {
  registry.add(reorder_op());
  registry.add(constant_rows_op());
  registry.add(same_steps_op());
  registry.add(step_mask_op());
  registry.add(op_of("last_rows", {"Array", "Order", "Boot"}, infer_last_rows));
}

}  // namespace millrace::ops
