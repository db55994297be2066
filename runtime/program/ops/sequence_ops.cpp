// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/concat.h>
#include <millrace/kernels/gather.h>
#include <millrace/kernels/gemm.h>
#include <millrace/kernels/row_conv.h>
#include <millrace/kernels/sequence_pool.h>
#include <millrace/kernels/sequence_scatter.h>
#include <millrace/kernels/sequence_softmax.h>
#include <millrace/kernels/sequence_top_k.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/packing.h>
#include <millrace/runtime/program/ops/internal/sequences.h>
#include <millrace/tensor/checked.h>

namespace millrace::ops {
namespace {

Ints inner_offsets(const LoD& lod) { return row_offsets(lod, sequence_level(lod, -1)); }

// ---- sequence_pool ----

SequencePool pool_named(const Attributes& attributes) {
  const std::string name = attributes.get<std::string>("kind");
  std::string known;
  for (const SequencePool kind :
       {SequencePool::average, SequencePool::sum, SequencePool::sqrt, SequencePool::max, SequencePool::first, SequencePool::last}) {
    if (name == name_of(kind)) return kind;
    known += (known.empty() ? "" : ", ") + std::string(name_of(kind));
  }
  throw ProgramError("attribute 'kind': expected one of " + known + ", found '" + name + "'");
}

void infer_pool(InferContext& context) {
  const SequencePool kind = pool_named(context.attributes());
  context.attributes().get_or("empty", 0.0);
  const int level = expect_level(context, 0);
  const DType dtype = context.tensor(0).dtype;
  const bool sums = kind == SequencePool::average || kind == SequencePool::sum || kind == SequencePool::sqrt;
  const bool takes = is_floating(dtype) || (kind != SequencePool::sqrt && (dtype == DType::i64 || dtype == DType::i32));
  if (sums && !takes) throw ProgramError("expected a dtype that '" + std::string(name_of(kind)) + "' takes, found " + context.describe(0));
  context.result(other_rows(context, 0, level));
}

OpKernel prepare_pool(const PrepareContext& context) {
  const SequencePool kind = pool_named(context.attributes());
  const double empty = context.attributes().get_or("empty", 0.0);
  return [kind, empty, wanted = level_of(context.attributes())](OpContext& run) {
    const LoD& lod = run.lod(0);
    const int level = sequence_level(lod, wanted);
    Tensor made = sequence_pool(kind, run.tensor(0), row_offsets(lod, level), empty, run.stream());
    run.set(0, LoDTensor(std::move(made), lod.levels(0, level)));
  };
}

// ---- sequence_softmax ----

void infer_softmax(InferContext& context) {
  expect_float(context, 0);
  expect_level(context, 0);
  context.result(same_rows(context, 0, context.tensor(0).lod_depth));
}

OpKernel prepare_softmax(const PrepareContext& context) {
  return [wanted = level_of(context.attributes())](OpContext& run) {
    const LoD& lod = run.lod(0);
    run.set(0, LoDTensor(sequence_softmax(run.tensor(0), row_offsets(lod, sequence_level(lod, wanted)), run.stream()), lod));
  };
}

// ---- sequence_conv ----

struct Window {
  std::int64_t start;
  std::int64_t length;
  std::int64_t before() const { return std::max<std::int64_t>(0, -start); }
  std::int64_t behind() const { return std::max<std::int64_t>(0, start + length - 1); }
  explicit Window(const Attributes& attributes)
      : start(attributes.get_or("context_start", std::int64_t{0})), length(attributes.get<std::int64_t>("context_length")) {
    constexpr std::int64_t most = std::int64_t{1} << 31;
    if (length < 1 || length > most)
      throw ProgramError("attribute 'context_length': expected 1 to " + std::to_string(most) + ", found " + std::to_string(length));
    if (start < -most || start > most)
      throw ProgramError("attribute 'context_start': expected at most " + std::to_string(most) + " rows before or after, found " +
                         std::to_string(start));
  }
};

void infer_conv(InferContext& context) {
  const Window window(context.attributes());
  expect_float(context, 0);
  expect_same_dtype(context, 0, 1);
  expect_rank(context, 0, 2);
  expect_rank(context, 1, 2);
  const int depth = expect_lod(context, 0);
  const std::int64_t channels = extent(context, 0, 1);
  if (channels != DDim::unknown) expect_extent(context, 1, 0, checked_mul(channels, window.length));
  if (context.has(2)) {
    expect_same_dtype(context, 0, 2);
    expect_rank(context, 2, 2);
    expect_extent(context, 2, 0, window.before() + window.behind());
    same_extent(channels, extent(context, 2, 1), "columns of " + context.describe(0) + " and " + context.describe(2));
  }
  context.result(VarType(context.tensor(0).dtype, DDim{extent(context, 0, 0), extent(context, 1, 1)}, depth));
}

GemmPlan conv_plan(const Tensor& filter, const Place& place) {
  return make_gemm_plan({filter.dim(0), filter.dim(1), filter.dtype(), filter.dtype()}, place);
}

/// The rows of each window, with those of the input Padding in place of rows outside the sequence.
void gather_bordered(const Window& window, OpContext& context, Tensor& windows) {
  const Tensor& x = context.tensor(0);
  const Tensor& padding = context.tensor(2);
  if (padding.dims() != DDim{window.before() + window.behind(), x.dim(1)})
    throw ShapeError("sequence_conv: expected padding of " + std::to_string(window.before()) + " rows before and " +
                     std::to_string(window.behind()) + " behind a sequence of " + x.to_string() + ", found " + padding.to_string());
  const Tensor all = concat({x, padding}, 0, context.stream());
  gather_rows(all, make_bordered_window_plan(context.lod(0), window.start, window.length).rows, windows, context.stream());
}

void run_conv(const Window& window, const GemmPlan& plan, const PackedMatrix& packed, OpContext& context) {
  const Tensor& x = context.tensor(0);
  const StreamRef stream = context.stream();
  if (x.rank() != 2 || x.dim(1) * window.length != plan.desc().k)
    throw ShapeError("sequence_conv: expected a filter of " + std::to_string(window.length) + " rows of " + x.to_string() + ", found " +
                     std::to_string(plan.desc().k) + " rows");
  // Before the plan, so that windows which no memory holds end here.
  Tensor windows(x.dtype(), DDim{checked_mul(x.dim(0), window.length), x.dim(1)}, stream.memory());
  if (windows.elements() > 0 && context.has(2))
    gather_bordered(window, context, windows);
  else if (windows.elements() > 0)
    gather_rows(x, make_window_plan(context.lod(0), window.start, window.length).rows, windows, stream);
  Tensor out(x.dtype(), DDim{x.dim(0), plan.desc().n}, stream.memory());
  run(plan, packed, windows.reshape(DDim{x.dim(0), plan.desc().k}), out, stream);
  context.set(0, LoDTensor(std::move(out), context.lod(0)));
}

OpKernel prepare_conv(const PrepareContext& context) {
  const Window window(context.attributes());
  const Tensor* filter = context.constant(1);
  if (filter == nullptr) {
    return [window](OpContext& run) {
      const GemmPlan plan = conv_plan(run.tensor(1), run.stream().place());
      run_conv(window, plan, pack(plan, run.tensor(1), run.stream()), run);
    };
  }
  const GemmPlan plan = conv_plan(*filter, context.place());
  PackingStream stream;
  return [window, plan, packed = PackedMatrix{context.placed(pack(plan, *filter, stream).data)}](OpContext& run) {
    run_conv(window, plan, packed, run);
  };
}

// ---- row_conv ----

void infer_row_conv(InferContext& context) {
  expect_float(context, 0);
  expect_same_dtype(context, 0, 1);
  expect_rank(context, 0, 2);
  expect_rank(context, 1, 2);
  expect_lod(context, 0);
  same_extent(extent(context, 0, 1), extent(context, 1, 1), "columns of " + context.describe(0) + " and " + context.describe(1));
  context.result(same_rows(context, 0, context.tensor(0).lod_depth));
}

OpKernel prepare_row_conv(const PrepareContext&) {
  return [](OpContext& run) {
    run.set(0, LoDTensor(row_conv(run.tensor(0), run.tensor(1), inner_offsets(run.lod(0)), run.stream()), run.lod(0)));
  };
}

// ---- sequence_scatter ----

void infer_scatter(InferContext& context) {
  expect_rank(context, 0, 2);
  expect_index_column(context, 1);
  expect_same_dtype(context, 0, 2);
  expect_column(context, 2);
  const int depth = expect_lod(context, 1);
  const int other = context.tensor(2).lod_depth;
  if (other != 0 && other != depth)
    throw ProgramError("two inputs carry different levels of LoD: " + context.describe(1) + " and " + context.describe(2));
  context.result(same_rows(context, 0, context.tensor(0).lod_depth));
}

OpKernel prepare_scatter(const PrepareContext&) {
  return [](OpContext& run) {
    const LoD& lod = run.lod(1);
    if (!run.lod(2).empty() && run.lod(2) != lod)
      throw LoDError("sequence_scatter: expected one LoD for ids and updates, found " + lod.brief() + " and " + run.lod(2).brief());
    Tensor made = sequence_scatter(run.tensor(0), run.tensor(1), run.tensor(2), inner_offsets(lod), run.stream());
    run.set(0, LoDTensor(std::move(made), run.lod(0)));
  };
}

// ---- sequence_top_k ----

void infer_top_k(InferContext& context) {
  const std::int64_t k = context.attributes().get<std::int64_t>("k");
  if (k < 0) throw ProgramError("attribute 'k': expected 0 or more, found " + std::to_string(k));
  const int depth = expect_lod(context, 0);
  VarType values = other_rows(context, 0, depth);
  VarType places = values;
  places.dtype = DType::i64;
  context.result(std::move(values));
  context.result(std::move(places));
}

OpKernel prepare_top_k(const PrepareContext& context) {
  return [k = context.attributes().get<std::int64_t>("k")](OpContext& run) {
    const LoD& lod = run.lod(0);
    SequenceTopK best = sequence_top_k(run.tensor(0), inner_offsets(lod), k, run.stream());
    const LoD shorter = lod.levels(0, lod.depth() - 1).append(LoD::from_offsets({best.offsets}));
    run.set(0, LoDTensor(std::move(best.values), shorter));
    run.set(1, LoDTensor(std::move(best.places), shorter));
  };
}

// ---- sequence_topk_avg_pooling ----

SequenceTopKAverage top_k_average(const Attributes& attributes) {
  SequenceTopKAverage options{attributes.get<Ints>("topks"), attributes.get<std::int64_t>("channel_num")};
  if (options.channels < 1) throw ProgramError("attribute 'channel_num': expected 1 or more, found " + std::to_string(options.channels));
  for (const std::int64_t k : options.ks)
    if (k < 1) throw ProgramError("attribute 'topks': expected 1 or more, found " + std::to_string(k));
  return options;
}

void infer_top_k_average(InferContext& context) {
  const SequenceTopKAverage options = top_k_average(context.attributes());
  expect_float(context, 0);
  expect_column(context, 0);
  expect_lod(context, 0);
  const int depth = expect_lod(context, 1);
  expect_lod(context, 2);
  const std::int64_t columns = checked_mul(options.channels, static_cast<std::int64_t>(options.ks.size()));
  context.result(VarType(context.tensor(0).dtype, DDim{extent(context, 1, 0), columns}, depth));
}

OpKernel prepare_top_k_average(const PrepareContext& context) {
  return [options = top_k_average(context.attributes())](OpContext& run) {
    const auto lengths = [&](std::size_t input) { return run.lod(input).lengths(sequence_level(run.lod(input), -1)); };
    Tensor made = sequence_top_k_average(run.tensor(0), inner_offsets(run.lod(0)), lengths(1), lengths(2), options, run.stream());
    run.set(0, LoDTensor(std::move(made), run.lod(1)));
  };
}

}  // namespace

void add_sequence_ops(OpRegistry& registry) {
  registry.add(sequence_op("sequence_pool", {"X"}, {"Out"}, infer_pool, prepare_pool, "pools over the rows of a sequence",
                           {"kind", "empty", "level"}));
  registry.add(
      sequence_op("sequence_softmax", {"X"}, {"Out"}, infer_softmax, prepare_softmax, "normalises over the rows of a sequence", {"level"}));
  registry.add(sequence_op("sequence_conv", {"X", "Filter", "Padding?"}, {"Out"}, infer_conv, prepare_conv,
                           "reads several rows for each result", {"context_start", "context_length"}));
  registry.add(
      sequence_op("row_conv", {"X", "Filter"}, {"Out"}, infer_row_conv, prepare_row_conv, "reads the rows that come after each row"));
  registry.add(sequence_op("sequence_scatter", {"X", "Ids", "Updates"}, {"Out"}, infer_scatter, prepare_scatter,
                           "adds a whole sequence to each row"));
  registry.add(sequence_op("sequence_top_k", {"X"}, {"Out", "Index"}, infer_top_k, prepare_top_k, "sorts the rows of a sequence", {"k"}));
  registry.add(sequence_op("sequence_topk_avg_pooling", {"X", "Row", "Column"}, {"Out"}, infer_top_k_average, prepare_top_k_average,
                           "reads all columns for each row", {"topks", "channel_num"}));
}

}  // namespace millrace::ops
