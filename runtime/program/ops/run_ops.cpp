// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <millrace/kernels/binary.h>
#include <millrace/kernels/concat.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/kernels/gemm.h>
#include <millrace/kernels/reduce.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/arrays.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/sequences.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/copy.h>

/// Runs of iterations of a recurrence over ragged rows, of which the memory policy `recompute` makes its loops.
///
/// Run j of a sequence holds its iterations from the one `every` · (j + 1) before its end to the one `every` · j before its end, so a backward
/// loop goes through all iterations in one order however they are cut into runs.
namespace millrace::ops {
namespace {

OpDef op_of(const char* name, std::vector<std::string> inputs, std::vector<std::string> outputs, void (*infer)(InferContext&),
            void (*run)(OpContext&), std::vector<std::string> attributes = {}) {
  OpDef def = define(name, std::move(inputs), std::move(outputs), std::move(attributes));
  def.infer = infer;
  if (run != nullptr) def.prepare = [run](const PrepareContext&) -> OpKernel { return run; };
  def.passes_lod = false;
  return def;
}

/// Iterations of a run. Without a number, as many as there are runs.
std::int64_t run_length(const Attributes& attributes, const SequenceOrder& order) {
  const auto every = attributes.get_or("every", std::int64_t{0});
  if (every > 0) return every;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(order.steps())))));
}

void expect_every(const InferContext& context) {
  const auto every = context.attributes().get_or("every", std::int64_t{0});
  if (every < 0) throw ProgramError("attribute 'every': expected 0 or more iterations of a run, found " + std::to_string(every));
}

// ---- sequence_order ----

void infer_order(InferContext& context) {
  const auto level = context.attributes().get_or("level", std::int64_t{0});
  if (level < 0 || level >= context.tensor(0).lod_depth)
    throw ProgramError("expected a level of LoD that is present, found " + std::to_string(level) + " for " + context.describe(0));
  context.result(VarType::order());
}

void run_order(OpContext& run) {
  const Attributes& attributes = run.op().attributes;
  run.set(0, SequenceOrder(run.lod(0), static_cast<int>(attributes.get_or("level", std::int64_t{0})),
                           attributes.get_or("sort_by_length", true), attributes.get_or("reverse", false)));
}

// ---- run_count ----

void infer_count(InferContext& context) {
  expect_order(context, 0);
  expect_every(context);
  context.result(VarType(DType::i64, DDim{}));
}

/// One run at least, which sequences without rows have, too.
void run_count(OpContext& run) {
  const SequenceOrder& order = run.in(0).order();
  const std::int64_t every = run_length(run.op().attributes, order);
  run.set(0, Tensor::scalar(std::max<std::int64_t>(1, order.steps() / every + (order.steps() % every == 0 ? 0 : 1))));
}

// ---- sequence_run ----

void infer_run(InferContext& context) {
  expect_order(context, 1);
  expect_every(context);
  expect_index(context, 2);
  expect_scalar(context, 2);
  if (context.tensor(0).lod_depth != 1) throw ProgramError("expected rows with one level of LoD, found " + context.describe(0));
  context.result(other_rows(context, 0, 1));
}

/// The rows of a run, by rank, and how many are of each sequence.
std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> rows_of_run(const SequenceOrder& order, std::int64_t every,
                                                                            std::int64_t index) {
  if (index < 0) throw IndexError("sequence_run: expected a run of 0 or more, found " + std::to_string(index));
  const std::int64_t behind = checked_mul(index, every);
  std::vector<std::int64_t> rows, lengths;
  for (std::size_t rank = 0; rank < order.permutation().size(); ++rank) {
    const std::int64_t length = order.lengths()[rank];
    const std::int64_t end = std::max<std::int64_t>(0, length - behind), begin = std::max<std::int64_t>(0, end - every);
    const std::int64_t first = order.lod().offsets(0)[static_cast<std::size_t>(order.permutation()[rank])];
    for (std::int64_t t = begin; t < end; ++t) rows.push_back(first + (order.reversed() ? length - end + (t - begin) : t));
    lengths.push_back(end - begin);
  }
  return {std::move(rows), std::move(lengths)};
}

void run_run(OpContext& run) {
  const LoDTensor& x = run.in(0).tensor();
  const SequenceOrder& order = run.in(1).order();
  if (x.lod() != order.lod())
    throw LoDError("sequence_run: expected the sequences of the " + order.to_string() + ", found " + x.to_string());
  const auto [rows, lengths] = rows_of_run(order, run_length(run.op().attributes, order), run.tensor(2).item_int());
  run.set(0, LoDTensor(gather_rows(x.tensor(), rows, run.stream()), LoD::from_lengths({lengths})));
}

// ---- sequence_run_gradient ----

void infer_run_gradient(InferContext& context) {
  expect_order(context, 2);
  expect_every(context);
  expect_index(context, 3);
  expect_scalar(context, 3);
  expect_same_dtype(context, 0, 1);
  context.result(tensor_type(context.tensor(1).dtype, context.tensor(1).shape));
}

/// Zeros in the rows of other runs.
void run_run_gradient(OpContext& run) {
  const SequenceOrder& order = run.in(2).order();
  const Tensor &gradient = run.tensor(0), &x = run.tensor(1);
  const auto [rows, lengths] = rows_of_run(order, run_length(run.op().attributes, order), run.tensor(3).item_int());
  if (gradient.dims().rank() == 0 || gradient.dim(0) != std::ssize(rows) || x.dim(0) != order.lod().rows())
    throw ShapeError("sequence_run_gradient: expected " + std::to_string(rows.size()) + " rows of a run of the " + order.to_string() +
                     ", found " + gradient.to_string() + " and " + x.to_string());
  Tensor made = full(x.dims(), 0, x.dtype(), run.stream());
  scatter_rows(gradient, rows, made, run.stream());
  run.set(0, std::move(made));
}

// ---- join_runs and its gradient: run by array_ops.cpp ----

void infer_join_gradient(InferContext& context) {
  const VarType& slot = slot_type(context, 1);
  expect_order(context, 2);
  if (context.tensor(0).dtype != slot.dtype)
    throw ProgramError("expected one dtype, found " + context.describe(0) + " and " + context.describe(1));
  if (slot.lod_depth != 1) throw ProgramError("expected slots of rows with one level of LoD, found " + context.describe(1));
  context.result(VarType::list_of(
      slot.shape ? VarType(slot.dtype, DDim(std::vector<std::int64_t>(static_cast<std::size_t>(slot.rank()), DDim::unknown)))
                 : VarType::unranked(slot.dtype)));
}

void infer_join(InferContext& context) {
  const VarType& slot = slot_type(context, 0);
  expect_order(context, 1);
  if (slot.lod_depth != 1) throw ProgramError("expected slots of rows with one level of LoD, found " + context.describe(0));
  VarType rows = tensor_type(slot.dtype, slot.shape);
  if (rows.shape) (*rows.shape)[0] = DDim::unknown;
  rows.lod_depth = 1;
  context.result(std::move(rows));
}

// ---- whole_blocks, add_row_products ----

/// Rows of a block of the dot product (kernels/gemm.h), and of a sum of rows.
constexpr std::int64_t block_rows = 512;

void infer_blocks(InferContext& context) {
  expect_same_dtype(context, 0, 1);
  const VarType &left = context.tensor(0), &rows = context.tensor(1);
  if (!rows.shape || rows.rank() == 0 || left.rank() != rows.rank())
    throw ProgramError("expected rows, found " + context.describe(0) + " and " + context.describe(1));
  DDim shape = *rows.shape;
  shape[0] = DDim::unknown;
  context.result(VarType(rows.dtype, shape));
  context.result(VarType(rows.dtype, shape));
}

void run_blocks(OpContext& run) {
  const StreamRef stream = run.stream();
  const Tensor &left = run.tensor(0), &more = run.tensor(1);
  const Tensor rows = left.dim(0) == 0 ? contiguous(more, stream) : concat({left, more}, 0, stream);
  const std::int64_t whole = rows.dim(0) / block_rows * block_rows;
  run.set(0, rows.rows(0, whole));
  run.set(1, whole == 0 ? rows : clone(rows.rows(whole, rows.dim(0)), stream));  // a view would hold all rows
}

/// Aᵀ·B of a block, or the sum of the rows of B without an A.
Tensor block_product(const Tensor* a, const Tensor& b, StreamRef stream) {
  if (a == nullptr) return reduce(Reduction::sum, b, {0}, false, stream);
  Tensor made(b.dtype(), DDim{a->dim(1), b.dim(1)}, stream.memory());
  gemm(1, a->permute({1, 0}), b, 0, made, stream);
  return made;
}

void infer_add_products(InferContext& context) {
  const VarType &sum = context.tensor(0), &b = context.tensor(1);
  expect_float(context, 0);
  expect_same_dtype(context, 0, 1);
  if (!b.shape || b.rank() == 0) throw ProgramError("expected rows, found " + context.describe(1));
  if (context.has(2)) {
    expect_same_dtype(context, 0, 2);
    expect_rank(context, 1, 2);
    expect_rank(context, 2, 2);
  }
  const DDim wanted = context.has(2) ? DDim{extent(context, 2, 1), extent(context, 1, 1)} : b.shape->erased(0);
  if (sum.shape && !fits(VarType(sum.dtype, *sum.shape), VarType(sum.dtype, wanted)))
    throw ProgramError("expected a sum of extents " + wanted.to_string() + ", found " + context.describe(0));
  context.result(tensor_type(sum.dtype, sum.shape));
}

void run_add_products(OpContext& run) {
  const StreamRef stream = run.stream();
  const Tensor& b = run.tensor(1);
  const Tensor* a = run.has(2) ? &run.tensor(2) : nullptr;
  if (a != nullptr && a->dim(0) != b.dim(0))
    throw ShapeError("add_row_products: expected as many rows, found " + a->to_string() + " and " + b.to_string());
  Tensor sum = run.tensor(0);
  for (std::int64_t at = 0; at < b.dim(0); at += block_rows) {
    const std::int64_t end = std::min(at + block_rows, b.dim(0));
    const std::optional<Tensor> rows = a == nullptr ? std::nullopt : std::optional(a->rows(at, end));
    sum = binary(Binary::add, sum, block_product(rows ? &*rows : nullptr, b.rows(at, end), stream), stream);
  }
  run.set(0, std::move(sum));
}

}  // namespace

void add_run_ops(OpRegistry& registry) {
  registry.add(op_of("sequence_order", {"X"}, {"Order"}, infer_order, run_order, {"level", "sort_by_length", "reverse"}));
  registry.add(op_of("run_count", {"Order"}, {"Out"}, infer_count, run_count, {"every"}));
  OpDef run = op_of("sequence_run", {"X", "Order", "Run"}, {"Out"}, infer_run, run_run, {"every"});
  run.host_inputs = {2};
  registry.add(std::move(run));
  OpDef back = op_of("sequence_run_gradient", {"Gradient", "X", "Order", "Run"}, {"Out"}, infer_run_gradient, run_run_gradient, {"every"});
  back.host_inputs = {3};
  registry.add(std::move(back));
  registry.add(op_of("join_runs", {"Array", "Order"}, {"Out"}, infer_join, nullptr));
  registry.add(op_of("join_runs_gradient", {"Gradient", "Array", "Order"}, {"Out"}, infer_join_gradient, nullptr));
  registry.add(op_of("whole_blocks", {"Left", "Rows"}, {"Blocks", "Rest"}, infer_blocks, run_blocks));
  registry.add(op_of("add_row_products", {"Sum", "B", "A?"}, {"Out"}, infer_add_products, run_add_products));
  registry.cut_gradients({"sequence_order", "run_count"});
}

}  // namespace millrace::ops
