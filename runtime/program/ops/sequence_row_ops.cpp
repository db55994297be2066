// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/sequences.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/copy.h>

namespace millrace::ops {
namespace {

Value gathered(const Tensor& x, const SequencePlan& plan, StreamRef stream) {
  return LoDTensor(gather_rows(x, plan.rows, stream), plan.lod);
}

// ---- sequence_reverse ----

void infer_reverse(InferContext& context) {
  expect_level(context, 0);
  context.result(same_rows(context, 0, context.tensor(0).lod_depth));
}

OpKernel prepare_reverse(const PrepareContext& context) {
  return [level = level_of(context.attributes())](OpContext& run) {
    run.set(0, gathered(run.tensor(0), make_reverse_plan(run.lod(0), level), run.stream()));
  };
}

// ---- sequence_slice ----

void infer_slice(InferContext& context) {
  expect_index_column(context, 1);
  expect_index_column(context, 2);
  expect_level(context, 0);
  context.result(other_rows(context, 0, context.tensor(0).lod_depth));
}

OpKernel prepare_slice(const PrepareContext& context) {
  return [level = level_of(context.attributes())](OpContext& run) {
    run.set(0, gathered(run.tensor(0), make_slice_plan(run.lod(0), level, run.integers(1), run.integers(2)), run.stream()));
  };
}

// ---- sequence_concat ----

void infer_concat(InferContext& context) {
  if (context.inputs() == 0) throw ProgramError("expected at least one input, found none");
  expect_level(context, 0);
  const VarType& first = context.tensor(0);
  VarType type = other_rows(context, 0, first.lod_depth);
  for (std::size_t i = 1; i < context.inputs(); ++i) {
    expect_same_dtype(context, 0, i);
    const VarType& other = context.tensor(i);
    const VarType rows = other_rows(context, i, other.lod_depth);
    if (other.lod_depth != first.lod_depth)
      throw ProgramError("two inputs carry different levels of LoD: " + context.describe(0) + " and " + context.describe(i));
    if (!fits(rows, type) && !fits(type, rows))
      throw ProgramError("expected equal rows, found " + context.describe(0) + " and " + context.describe(i));
    type = common(type, rows);
  }
  context.result(std::move(type));
}

OpKernel prepare_concat(const PrepareContext& context) {
  return [level = level_of(context.attributes())](OpContext& run) {
    std::vector<LoD> lods;
    for (std::size_t i = 0; i < run.inputs(); ++i) lods.push_back(run.lod(i));
    JoinPlan plan = make_concat_plan(lods, level);
    DDim dims = run.tensor(0).dims();
    dims[0] = plan.rows;
    Tensor out(run.tensor(0).dtype(), dims, run.stream().memory());
    for (std::size_t i = 0; i < run.inputs(); ++i) scatter_rows(run.tensor(i), plan.targets[i], out, run.stream());
    run.set(0, LoDTensor(std::move(out), plan.lod));
  };
}

// ---- sequence_expand, sequence_expand_as ----

void infer_expand(InferContext& context) {
  const int level = expect_level(context, 1, "ref_level");
  const int depth = context.tensor(0).lod_depth;
  context.result(other_rows(context, 0, depth > 0 ? depth : level + 1));
}

OpKernel prepare_expand(const PrepareContext& context) {
  return [wanted = level_of(context.attributes(), "ref_level")](OpContext& run) {
    const Tensor& x = run.tensor(0);
    const int level = sequence_level(run.lod(1), wanted);
    SequencePlan plan = make_repeat_plan(run.lod(0), x.dim(0), run.lod(1).lengths(level));
    if (run.lod(0).empty()) plan.lod = run.lod(1).levels(0, level + 1);
    run.set(0, gathered(x, plan, run.stream()));
  };
}

void infer_expand_as(InferContext& context) {
  const int level = expect_level(context, 1);
  const int depth = context.tensor(0).lod_depth;
  // Beside outermost sequences X may have some of its own, as Fluid's has: they say nothing about those of Y.
  if (depth != 0 && depth != level && level != 0)
    throw ProgramError("expected a row for each sequence of level " + std::to_string(level) + ", with the levels above it or none, found " +
                       context.describe(0) + " and " + context.describe(1));
  context.result(other_rows(context, 0, context.tensor(1).lod_depth));
}

OpKernel prepare_expand_as(const PrepareContext& context) {
  return [wanted = level_of(context.attributes())](OpContext& run) {
    const LoD& lod = run.lod(1);
    const Tensor& x = run.tensor(0);
    const int level = sequence_level(lod, wanted);
    if (x.dim(0) != lod.sequences(level) || (level > 0 && !run.lod(0).empty() && run.lod(0) != lod.levels(0, level)))
      throw LoDError("sequence_expand_as: expected a row for each of the " + std::to_string(lod.sequences(level)) + " sequences at level " +
                     std::to_string(level) + " of " + lod.brief() + ", found " + LoDTensor(x, run.lod(0)).to_string());
    run.set(0, gathered(x, {lod.row_ids(level), lod}, run.stream()));
  };
}

// ---- sequence_enumerate, sequence_erase ----

void infer_enumerate(InferContext& context) {
  const std::int64_t size = context.attributes().get<std::int64_t>("win_size");
  const std::int64_t pad = context.attributes().get_or("pad_value", std::int64_t{0});
  if (size < 1) throw ProgramError("attribute 'win_size': expected 1 or more, found " + std::to_string(size));
  expect_index_column(context, 0);
  const std::int64_t most = context.tensor(0).dtype == DType::i32 ? std::int64_t{1} << 31 : std::int64_t{1} << 53;
  if (pad < -most || pad >= most)
    throw ProgramError("attribute 'pad_value': expected a number that fits " + context.describe(0) + ", found " + std::to_string(pad));
  context.result(VarType(context.tensor(0).dtype, DDim{extent(context, 0, 0), size}, expect_lod(context, 0)));
}

OpKernel prepare_enumerate(const PrepareContext& context) {
  const auto size = context.attributes().get<std::int64_t>("win_size");
  const auto pad = static_cast<double>(context.attributes().get_or("pad_value", std::int64_t{0}));
  return [size, pad](OpContext& run) {
    const Tensor& x = run.tensor(0);
    const StreamRef stream = run.stream();
    // Before the plan, so that windows which no memory holds end here.
    Tensor out(x.dtype(), DDim{x.dim(0), size}, stream.memory());
    Tensor rows = out.reshape(with_leading_dims(x.dims(), {out.elements()}));
    gather_rows_or(x, make_window_plan(run.lod(0), 0, size).rows, full(DDim{}, pad, x.dtype(), stream), rows, stream);
    run.set(0, LoDTensor(std::move(out), run.lod(0)));
  };
}

void infer_erase(InferContext& context) {
  context.attributes().get<Ints>("tokens");
  expect_index_column(context, 0);
  context.result(other_rows(context, 0, expect_lod(context, 0)));
}

OpKernel prepare_erase(const PrepareContext& context) {
  Ints tokens = context.attributes().get<Ints>("tokens");
  std::sort(tokens.begin(), tokens.end());
  return [tokens](OpContext& run) {
    std::vector<bool> keep;
    for (const std::int64_t id : run.integers(0)) keep.push_back(!std::binary_search(tokens.begin(), tokens.end(), id));
    run.set(0, gathered(on_stream(run.tensor(0), run.stream()), make_keep_plan(run.lod(0), keep), run.stream()));
  };
}

// ---- sequence_pad, sequence_unpad ----

void infer_pad(InferContext& context) {
  const std::int64_t length = context.attributes().get_or("padded_length", std::int64_t{-1});
  if (length < -1)
    throw ProgramError("attribute 'padded_length': expected 0 or more, or -1 for the longest, found " + std::to_string(length));
  const int depth = expect_lod(context, 0);
  VarType padded = other_rows(context, 0, depth - 1);
  if (padded.rank() == max_rank) throw ProgramError("expected room for one more axis, found " + context.describe(0));
  if (context.has(1)) {
    expect_same_dtype(context, 0, 1);
    const std::optional<DDim>& value = context.tensor(1).shape;
    const bool one = !value || context.tensor(1).is_scalar() || (value->rank() == 1 && (*value)[0] == DDim::unknown);
    if (!one && padded.shape && !fits(VarType(padded.dtype, *value), VarType(padded.dtype, padded.shape->erased(0))))
      throw ProgramError("expected one element or a row of " + context.describe(0) + " to pad with, found " + context.describe(1));
  }
  if (padded.shape) padded.shape = padded.shape->inserted(1, length);  // -1 is unknown, too
  context.result(std::move(padded));
  context.result(VarType(DType::i64, DDim{DDim::unknown}, depth - 1));
}

OpKernel prepare_pad(const PrepareContext& context) {
  return [length = context.attributes().get_or("padded_length", std::int64_t{-1})](OpContext& run) {
    const LoD& lod = run.lod(0);
    const Tensor& x = run.tensor(0);
    const StreamRef stream = run.stream();
    const LoD outer = lod.levels(0, sequence_level(lod, -1));
    const Ints lengths = lod.lengths(outer.depth());
    const auto count = static_cast<std::int64_t>(lengths.size());
    const std::int64_t room = padded_room(lod, length);
    // Before the plan, so that room which no memory holds ends here.
    Tensor out(x.dtype(), with_leading_dims(x.dims(), {count, room}), stream.memory());
    Tensor rows = out.reshape(with_leading_dims(x.dims(), {checked_mul(count, room)}));
    const Tensor padding = run.has(1) ? run.tensor(1) : full(DDim{}, 0, x.dtype(), stream);
    const Tensor row = padding.elements() == 1 ? contiguous(padding, stream).reshape(DDim{}) : padding;
    if (out.elements() > 0) gather_rows_or(x, make_pad_plan(lod, length).rows, row, rows, stream);
    run.set(0, LoDTensor(std::move(out), outer));
    run.set(1, LoDTensor(list_on(lengths, stream), outer));
  };
}

void infer_unpad(InferContext& context) {
  expect_index_column(context, 1);
  const VarType& x = context.tensor(0);
  if (x.shape && x.rank() < 2) throw ProgramError("expected padded sequences of [N, L, ...], found " + context.describe(0));
  same_extent(extent(context, 0, 0), extent(context, 1, 0), "sequences and lengths");
  VarType rows = other_rows(context, 0, x.lod_depth + 1);
  if (rows.shape) rows.shape = rows.shape->erased(1);
  context.result(std::move(rows));
}

OpKernel prepare_unpad(const PrepareContext&) {
  return [](OpContext& run) {
    const Tensor& x = run.tensor(0);
    const Ints lengths = run.integers(1);
    if (x.rank() < 2 || std::cmp_not_equal(lengths.size(), x.dim(0)))
      throw ShapeError("sequence_unpad: expected sequences of [N, L, ...] and a length for each, found " + x.to_string() + " and " +
                       std::to_string(lengths.size()) + " lengths");
    const SequencePlan plan = make_unpad_plan(lengths, x.dim(1), run.lod(0));
    DDim dims = x.dims().erased(0);
    dims[0] = checked_mul(x.dim(0), x.dim(1));
    run.set(0, gathered(contiguous(x, run.stream()).reshape(dims), plan, run.stream()));
  };
}

// ---- sequence_reshape ----

void infer_reshape(InferContext& context) {
  const std::int64_t width = context.attributes().get<std::int64_t>("new_dim");
  if (width < 1) throw ProgramError("attribute 'new_dim': expected 1 or more, found " + std::to_string(width));
  expect_rank(context, 0, 2);
  context.result(VarType(context.tensor(0).dtype, DDim{DDim::unknown, width}, expect_lod(context, 0)));
}

OpKernel prepare_reshape(const PrepareContext& context) {
  return [width = context.attributes().get<std::int64_t>("new_dim")](OpContext& run) {
    const Tensor& x = run.tensor(0);
    const LoD& lod = run.lod(0);
    const int inner = sequence_level(lod, -1);
    Ints lengths = lod.lengths(inner);
    std::int64_t rows = 0;
    for (std::int64_t& length : lengths) {
      const std::int64_t elements = checked_mul(length, x.dim(1));
      if (elements % width != 0)
        throw ShapeError("sequence_reshape: expected sequences that make whole rows of " + std::to_string(width) + ", found one of " +
                         std::to_string(length) + " rows of " + x.to_string());
      length = elements / width;
      rows += length;
    }
    run.set(0, LoDTensor(contiguous(x, run.stream()).reshape(DDim{rows, width}), lod.levels(0, inner).append(lengths)));
  };
}

}  // namespace

void add_sequence_row_ops(OpRegistry& registry) {
  const auto on_host = [&](OpDef def, std::vector<std::size_t> inputs) {
    def.host_inputs = std::move(inputs);
    registry.add(std::move(def));
  };
  registry.add(
      sequence_op("sequence_reverse", {"X"}, {"Out"}, infer_reverse, prepare_reverse, "begins with the last row of a sequence", {"level"}));
  on_host(
      sequence_op("sequence_slice", {"X", "Offset", "Length"}, {"Out"}, infer_slice, prepare_slice, "picks some of the rows", {"level"}),
      {1, 2});
  registry.add(sequence_op("sequence_concat", {"Xs..."}, {"Out"}, infer_concat, prepare_concat, "joins whole sequences", {"level"}));
  registry.add(sequence_op("sequence_expand", {"X", "Y"}, {"Out"}, infer_expand, prepare_expand,
                           "repeats rows by lengths that only the end tells", {"ref_level"}));
  registry.add(sequence_op("sequence_expand_as", {"X", "Y"}, {"Out"}, infer_expand_as, prepare_expand_as,
                           "repeats rows by lengths that only the end tells", {"level"}));
  registry.add(sequence_op("sequence_enumerate", {"X"}, {"Out"}, infer_enumerate, prepare_enumerate,
                           "reads the rows that come after each row", {"win_size", "pad_value"}));
  on_host(sequence_op("sequence_erase", {"X"}, {"Out"}, infer_erase, prepare_erase, "leaves out some of the rows", {"tokens"}), {0});
  registry.add(sequence_op("sequence_pad", {"X", "PadValue?"}, {"Out", "Length"}, infer_pad, prepare_pad, "pads whole sequences",
                           {"padded_length"}));
  on_host(sequence_op("sequence_unpad", {"X", "Length"}, {"Out"}, infer_unpad, prepare_unpad, "works on whole sequences"), {1});
  registry.add(sequence_op("sequence_reshape", {"X"}, {"Out"}, infer_reshape, prepare_reshape, "makes rows of several rows", {"new_dim"}));
}

}  // namespace millrace::ops
