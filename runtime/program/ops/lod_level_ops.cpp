// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/kernels/cast.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/sequences.h>
#include <millrace/tensor/copy.h>

namespace millrace::ops {
namespace {

// ---- split_by_mask, merge_by_mask ----

/// 0 … depth, where depth means rows.
int mask_level(const InferContext& context) {
  const std::int64_t level = context.attributes().get_or("level", std::int64_t{0});
  const int depth = context.tensor(0).lod_depth;
  if (level < 0 || level > depth)
    throw ProgramError("attribute 'level': expected a level from 0 to " + std::to_string(depth) + " (the last means rows), found " +
                       std::to_string(level) + " for " + context.describe(0));
  return static_cast<int>(level);
}

int mask_level(const Attributes& attributes) { return static_cast<int>(attributes.get_or("level", std::int64_t{0})); }

void infer_split(InferContext& context) {
  expect_dtype(context, 1, DType::boolean);
  expect_column(context, 1);
  mask_level(context);
  for (int half = 0; half < 2; ++half) context.result(other_rows(context, 0, context.tensor(0).lod_depth));
}

OpKernel prepare_split(const PrepareContext& context) {
  return [level = mask_level(context.attributes())](OpContext& run) {
    const Tensor& x = run.tensor(0);
    const auto [set, unset] = make_mask_split_plan(run.lod(0), x.dim(0), level, run.tensor(1).to_vector<bool>());
    run.set(0, LoDTensor(gather_rows(x, set.rows, run.stream()), set.lod));
    run.set(1, LoDTensor(gather_rows(x, unset.rows, run.stream()), unset.lod));
  };
}

void infer_merge(InferContext& context) {
  expect_same_dtype(context, 0, 1);
  expect_dtype(context, 2, DType::boolean);
  expect_column(context, 2);
  mask_level(context);
  const VarType set = other_rows(context, 0, context.tensor(0).lod_depth);
  const VarType unset = other_rows(context, 1, context.tensor(1).lod_depth);
  if (set.lod_depth != unset.lod_depth)
    throw ProgramError("two inputs carry different levels of LoD: " + context.describe(0) + " and " + context.describe(1));
  if (!fits(set, unset) && !fits(unset, set))
    throw ProgramError("expected equal rows, found " + context.describe(0) + " and " + context.describe(1));
  context.result(common(set, unset));
}

OpKernel prepare_merge(const PrepareContext& context) {
  return [level = mask_level(context.attributes())](OpContext& run) {
    const Tensor& set = run.tensor(0);
    const Tensor& unset = run.tensor(1);
    const JoinPlan plan = make_mask_merge_plan(run.lod(1), unset.dim(0), run.lod(0), set.dim(0), level, run.tensor(2).to_vector<bool>());
    DDim dims = set.dims();
    dims[0] = plan.rows;
    Tensor out(set.dtype(), dims, run.stream().memory());
    scatter_rows(unset, plan.targets[0], out, run.stream());
    scatter_rows(set, plan.targets[1], out, run.stream());
    run.set(0, LoDTensor(std::move(out), plan.lod));
  };
}

// ---- lod_reset, lod_append ----

/// Exactly one of the inputs behind X, and the attribute `lengths`.
void expect_one_source(const InferContext& context) {
  int found = context.attributes().has("lengths") ? 1 : 0;
  for (std::size_t input = 1; input < context.inputs(); ++input) found += context.has(input) ? 1 : 0;
  if (found != 1)
    throw ProgramError("expected one source of the new level, an input or the attribute 'lengths', found " + std::to_string(found));
  if (context.attributes().has("lengths")) context.attributes().get<Ints>("lengths");
}

constexpr std::size_t in_lengths = 1, in_like = 2;

Ints told_lengths(const Attributes& attributes, const OpContext& run) {
  return run.has(in_lengths) ? run.integers(in_lengths) : attributes.get<Ints>("lengths");
}

void infer_reset(InferContext& context) {
  expect_one_source(context);
  if (context.has(in_lengths)) expect_index_column(context, in_lengths);
  context.result(same_rows(context, 0, context.has(in_like) ? expect_lod(context, in_like) : 1));
}

OpKernel prepare_reset(const PrepareContext& context) {
  return [attributes = context.attributes()](OpContext& run) {
    const LoD lod = run.has(in_like) ? run.lod(in_like) : LoD::from_lengths({told_lengths(attributes, run)});
    run.set(0, LoDTensor(run.tensor(0), lod));
  };
}

void infer_append(InferContext& context) {
  expect_one_source(context);
  if (context.has(in_lengths)) expect_index_column(context, in_lengths);
  context.result(same_rows(context, 0, context.tensor(0).lod_depth + 1));
}

OpKernel prepare_append(const PrepareContext& context) {
  return [attributes = context.attributes()](OpContext& run) {
    run.set(0, LoDTensor(run.tensor(0), run.lod(0).append(told_lengths(attributes, run))));
  };
}

// ---- sequence_mask ----

/// -1: as long as the longest.
std::int64_t mask_length(const Attributes& attributes) { return attributes.get_or("maxlen", std::int64_t{-1}); }
DType mask_dtype(const Attributes& attributes) { return attributes.get_or("to", DType::i64); }

void infer_mask(InferContext& context) {
  const std::int64_t length = mask_length(context.attributes());
  if (length < -1) throw ProgramError("attribute 'maxlen': expected 0 or more, or -1 for the longest, found " + std::to_string(length));
  if (context.has(1)) {
    expect_index(context, 1);
    expect_scalar(context, 1);
    if (context.attributes().has("maxlen")) throw ProgramError("expected one of the input MaxLen and the attribute 'maxlen', found both");
  }
  mask_dtype(context.attributes());
  expect_index(context, 0);
  const VarType& x = context.tensor(0);
  if (x.rank() == max_rank) throw ProgramError("expected room for one more axis, found " + context.describe(0));
  VarType mask = tensor_type(mask_dtype(context.attributes()), x.shape);
  if (mask.shape) mask.shape = mask.shape->inserted(x.rank(), length);  // -1 is unknown, too
  mask.lod_depth = x.lod_depth;
  context.result(std::move(mask));
}

OpKernel prepare_mask(const PrepareContext& context) {
  const std::int64_t wanted = mask_length(context.attributes());
  return [wanted, dtype = mask_dtype(context.attributes())](OpContext& run) {
    const Tensor x = on_stream(run.tensor(0), run.stream());
    std::int64_t longest = 0;
    for (const std::int64_t length : run.integers(0)) {
      if (length < 0) throw ArgumentError("sequence_mask: expected lengths of 0 or more, found " + std::to_string(length));
      longest = std::max(longest, length);
    }
    const StreamRef stream = run.stream();
    const std::int64_t asked = run.has(1) ? run.tensor(1).item_int() : wanted;
    if (asked < -1)
      throw ArgumentError("sequence_mask: expected a MaxLen of 0 or more, or -1 for the longest, found " + std::to_string(asked));
    const std::int64_t room = asked < 0 ? longest : asked;
    // First, so that lengths which no memory holds end here.
    Tensor out(dtype, x.dims().inserted(x.rank(), room), stream.memory());
    const Tensor lengths = contiguous(cast(x, DType::i64, stream), stream).reshape(x.dims().inserted(x.rank(), 1));
    const Tensor inside = less(arange(room, DType::i64, stream), lengths, stream);
    cast(inside, out, stream);
    run.set(0, LoDTensor(std::move(out), run.lod(0)));
  };
}

}  // namespace

void add_lod_level_ops(OpRegistry& registry) {
  const auto on_host = [&](OpDef def, std::vector<std::size_t> inputs) {
    def.host_inputs = std::move(inputs);
    registry.add(std::move(def));
  };
  on_host(
      sequence_op("split_by_mask", {"X", "Mask"}, {"OutTrue", "OutFalse"}, infer_split, prepare_split, "picks some of the rows", {"level"}),
      {1});
  on_host(sequence_op("merge_by_mask", {"InTrue", "InFalse", "Mask"}, {"Out"}, infer_merge, prepare_merge, "joins rows of two inputs",
                      {"level"}),
          {2});
  on_host(sequence_op("lod_reset", {"X", "Lengths?", "Like?"}, {"Out"}, infer_reset, prepare_reset, "cuts the rows into other sequences",
                      {"lengths"}),
          {in_lengths});
  on_host(sequence_op("lod_append", {"X", "Lengths?"}, {"Out"}, infer_append, prepare_append, "cuts the rows into other sequences",
                      {"lengths"}),
          {in_lengths});
  on_host(
      sequence_op("sequence_mask", {"X", "MaxLen?"}, {"Out"}, infer_mask, prepare_mask, "reads its lengths on the host", {"maxlen", "to"}),
      {0, 1});
}

}  // namespace millrace::ops
