// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/beam_search.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather_tree.h>
#include <millrace/kernels/sample.h>
#include <millrace/runtime/program/ops/internal/arrays.h>
#include <millrace/runtime/program/ops/internal/beams.h>
#include <millrace/runtime/program/ops/internal/decoding.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>

namespace millrace::ops {

BeamOptions beam_options(const Attributes& attributes) {
  BeamOptions options;
  options.width = attributes.get_or("beam_size", options.width);
  options.end_token = attributes.get_or("end_id", options.end_token);
  options.length_penalty = attributes.get_or("length_penalty", options.length_penalty);
  options.accumulated = attributes.get_or("is_accumulated", options.accumulated);
  return options;
}

namespace {

const DDim one_column{DDim::unknown, 1};

void check_width(const InferContext& context) {
  const std::int64_t width = beam_options(context.attributes()).width;
  if (width < 1) throw ProgramError("expected a beam_size of 1 or more, found " + std::to_string(width));
}

/// Ids, scores, lengths and parents of prefixes.
void prefix_results(InferContext& context, DType scores) {
  context.result(VarType(DType::i64, one_column, 2));
  context.result(VarType(scores, one_column, 2));
  context.result(VarType(DType::i64, one_column, 2));
  context.result(VarType(DType::i64, DDim{DDim::unknown}));
}

// ---- beam_search_start ----

OpDef beam_search_start_op() {
  OpDef def = define("beam_search_start", {"Tokens"}, {"Ids", "Scores", "Lengths", "Parents"}, {"dtype"});
  def.infer = [](InferContext& context) {
    expect_index(context, 0);
    if (context.tensor(0).lod_depth > 0) throw ProgramError("expected a token for each source, without LoD, found " + context.describe(0));
    const DType dtype = context.attributes().get_or("dtype", DType::f32);
    if (!is_floating(dtype)) throw ProgramError("expected floats for the scores, found " + std::string(name_of(dtype)));
    prefix_results(context, dtype);
  };
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    return [dtype = context.attributes().get_or("dtype", DType::f32)](OpContext& run) {
      Prefixes first = beam_search_start(run.tensor(0), dtype, run.stream());
      const std::int64_t sources = first.ids.rows();
      run.set(0, std::move(first.ids));
      run.set(1, std::move(first.scores));
      run.set(2, std::move(first.lengths));
      run.set(3, arange(sources, DType::i64, run.stream()));
    };
  };
  needs_whole_sequences(def);
  return def;
}

// ---- beam_search_step ----

void infer_step(InferContext& context) {
  check_width(context);
  expect_index(context, 0);
  expect_lod(context, 0);
  expect_float(context, 1);
  expect_index(context, 2);
  expect_same_dtype(context, 1, 3);
  expect_rank(context, 3, 2);
  if (context.has(4)) {
    expect_index(context, 4);
    expect_rank(context, 4, 2);
    same_extent(extent(context, 3, 1), extent(context, 4, 1), "candidates of scores and ids");
  }
  prefix_results(context, context.tensor(1).dtype);
  context.result(VarType(DType::boolean, DDim{}));
}

OpDef beam_search_step_op() {
  OpDef def = define("beam_search_step", {"PreIds", "PreScores", "PreLengths", "Scores", "Ids?"},
                     {"SelectedIds", "SelectedScores", "SelectedLengths", "Parents", "Live"},
                     {"beam_size", "end_id", "length_penalty", "is_accumulated"});
  def.infer = infer_step;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    return [options = beam_options(context.attributes())](OpContext& run) {
      const Prefixes before{run.in(0).tensor(), run.in(1).tensor(), run.in(2).tensor()};
      BeamStep step = beam_search_step(before, run.tensor(3), run.has(4) ? &run.tensor(4) : nullptr, options, run.stream());
      run.set(0, std::move(step.kept.ids));
      run.set(1, std::move(step.kept.scores));
      run.set(2, std::move(step.kept.lengths));
      run.set(3, std::move(step.parents));
      run.set(4, Tensor::scalar(step.live));
    };
  };
  def.host_inputs = {0, 1, 2, 3, 4};
  needs_whole_sequences(def);
  return def;
}

// ---- beam_search_decode: run by array_ops.cpp ----

OpDef beam_search_decode_op() {
  OpDef def = define("beam_search_decode", {"Ids", "Scores"}, {"SentenceIds", "SentenceScores", "Totals"}, {"end_id", "length_penalty"});
  def.infer = [](InferContext& context) {
    const VarType& ids = slot_type(context, 0);
    const VarType& scores = slot_type(context, 1);
    if (ids.dtype != DType::i64 && ids.dtype != DType::i32)
      throw ProgramError("expected slots of i64 or i32, found " + context.describe(0));
    if (!is_floating(scores.dtype)) throw ProgramError("expected slots of floats, found " + context.describe(1));
    if (ids.lod_depth != 2) throw ProgramError("expected slots with 2 levels of LoD, found " + context.describe(0));
    context.result(VarType(DType::i64, one_column, 2));
    context.result(VarType(scores.dtype, one_column, 2));
    context.result(VarType(scores.dtype, one_column, 1));
  };
  def.passes_lod = false;
  return def;
}

// ---- gather_tree ----

OpDef gather_tree_op() {
  OpDef def = define("gather_tree", {"Ids", "Parents", "Lengths?"}, {"Out"}, {"end_token"});
  def.infer = [](InferContext& context) {
    expect_index(context, 0);
    expect_same_dtype(context, 0, 1);
    expect_rank(context, 0, 3);
    expect_rank(context, 1, 3);
    DDim dims{DDim::unknown, DDim::unknown, DDim::unknown};
    for (int axis = 0; axis < 3; ++axis)
      dims[axis] = same_extent(extent(context, 0, axis), extent(context, 1, axis), "extents of ids and parents");
    if (context.has(2)) {
      expect_index(context, 2);
      expect_rank(context, 2, 1);
      dims[1] = same_extent(dims[1], extent(context, 2, 0), "sources of ids and lengths");
    }
    context.attributes().get_or("end_token", std::int64_t{-1});
    context.result(VarType(context.tensor(0).dtype, dims));
  };
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    std::optional<std::int64_t> end;
    if (context.attributes().has("end_token")) end = context.attributes().get<std::int64_t>("end_token");
    return [end](OpContext& run) {
      run.set(0, gather_tree(run.tensor(0), run.tensor(1), run.has(2) ? &run.tensor(2) : nullptr, end, run.stream()));
    };
  };
  def.follow_rows = [](const InferContext&, const std::vector<int>& axes) -> std::vector<int> {
    if (std::any_of(axes.begin(), axes.end(), [](int axis) { return axis >= 0; })) refuse_rows("traces back from the last step");
    return {-1};
  };
  return def;
}

// ---- sample_tokens ----

SampleOptions sample_options(const Attributes& attributes) {
  SampleOptions options;
  options.seed = static_cast<std::uint64_t>(attributes.get_or("seed", std::int64_t{0}));
  options.temperature = attributes.get_or("temperature", options.temperature);
  options.top = attributes.get_or("top", options.top);
  return options;
}

void infer_sample(InferContext& context) {
  expect_float(context, 0);
  expect_rank(context, 0, 2);
  expect_index(context, 1);
  expect_index(context, 2);
  expect_scalar(context, 2);
  const SampleOptions options = sample_options(context.attributes());
  if (!(options.temperature > 0)) throw ProgramError("expected a temperature above 0, found " + std::to_string(options.temperature));
  if (options.top < 0) throw ProgramError("expected a top of 0 or more, found " + std::to_string(options.top));
  const DDim each{extent(context, 0, 0), 1};
  context.result(VarType(DType::i64, each));
  context.result(VarType(context.tensor(0).dtype, each));
}

OpDef sample_tokens_op() {
  OpDef def = define("sample_tokens", {"Scores", "Keys", "Step"}, {"Ids", "Score"}, {"seed", "temperature", "top"});
  def.infer = infer_sample;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    return [options = sample_options(context.attributes())](OpContext& run) {
      Sampled sampled = sample_tokens(run.tensor(0), run.tensor(1), run.tensor(2), options, run.stream());
      run.set(0, std::move(sampled.tokens));
      run.set(1, std::move(sampled.scores));
    };
  };
  def.follow_rows = [](const InferContext&, const std::vector<int>& axes) -> std::vector<int> {
    if (axes[2] >= 0) refuse_rows("takes one step for all rows");
    if (axes[0] != 0 || axes[1] != 0) refuse_rows("needs a key for each row of scores");
    return {0, 0};
  };
  return def;
}

}  // namespace

void add_beam_ops(OpRegistry& registry) {
  registry.add(beam_search_start_op());
  registry.add(beam_search_step_op());
  registry.add(beam_search_decode_op());
  registry.add(gather_tree_op());
  registry.add(sample_tokens_op());
}

}  // namespace millrace::ops
