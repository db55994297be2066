// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <utility>

#include <millrace/kernels/ctc.h>
#include <millrace/kernels/edit_distance.h>
#include <millrace/kernels/gather.h>
#include <millrace/runtime/program/ops/internal/decoding.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/gradients.h>

namespace millrace::ops {
namespace {

// ---- ctc_greedy, ctc_beam_search ----

CtcBeam beam_of(const Attributes& attributes) {
  CtcBeam beam;
  beam.blank = attributes.get_or("blank", beam.blank);
  beam.width = attributes.get_or("width", beam.width);
  beam.top = attributes.get_or("top", beam.top);
  beam.paths = attributes.get_or("paths", beam.paths);
  return beam;
}

/// Levels of LoD of the frames.
int infer_frames(InferContext& context, std::int64_t blank) {
  expect_float(context, 0);
  expect_rank(context, 0, 2);
  const std::int64_t classes = extent(context, 0, 1);
  if (blank < 0 || (classes != DDim::unknown && blank >= classes))
    throw ProgramError("expected a blank of " + (classes == DDim::unknown ? "its" : std::to_string(classes)) + " classes, found " +
                       std::to_string(blank));
  return expect_lod(context, 0);
}

void infer_ctc(InferContext& context) {
  context.attributes().get_or("merge_repeated", true);
  const CtcBeam beam = beam_of(context.attributes());
  const int levels = infer_frames(context, beam.blank);
  if (beam.width < 1) throw ProgramError("expected a width of 1 or more, found " + std::to_string(beam.width));
  if (beam.top < 0) throw ProgramError("expected a top of 0 or more, found " + std::to_string(beam.top));
  if (beam.paths < 1 || beam.paths > beam.width)
    throw ProgramError("expected 1 to " + std::to_string(beam.width) + " paths, the width, found " + std::to_string(beam.paths));
  const DDim each{DDim::unknown, beam.paths};
  context.result(VarType(DType::i64, DDim{extent(context, 0, 0), beam.paths}, levels));
  context.result(VarType(DType::i64, each, levels - 1));
  context.result(VarType(context.tensor(0).dtype, each, levels - 1));
}

OpDef ctc_op(const char* name, std::function<CtcLabels(const OpContext&)> (*prepare)(const Attributes&),
             std::vector<std::string> attributes) {
  OpDef def = define(name, {"X"}, {"Labels", "Lengths", "Score"}, std::move(attributes));
  def.infer = infer_ctc;
  def.prepare = [prepare](const PrepareContext& context) -> OpKernel {
    return [search = prepare(context.attributes())](OpContext& run) {
      CtcLabels found = search(run);
      run.set(0, LoDTensor(std::move(found.labels), run.lod(0)));
      run.set(1, one_each(std::move(found.lengths), run.lod(0)));
      run.set(2, one_each(std::move(found.scores), run.lod(0)));
    };
  };
  needs_whole_sequences(def);
  return def;
}

std::function<CtcLabels(const OpContext&)> greedy(const Attributes& attributes) {
  const CtcGreedy options(attributes.get_or("blank", std::int64_t{0}), attributes.get_or("merge_repeated", true));
  return [options](const OpContext& run) { return ctc_greedy(run.tensor(0), run.lod(0), options, run.stream()); };
}
std::function<CtcLabels(const OpContext&)> by_beam(const Attributes& attributes) {
  return [beam = beam_of(attributes)](const OpContext& run) { return ctc_beam_search(run.tensor(0), run.lod(0), beam, run.stream()); };
}

// ---- ctc_align ----

std::vector<bool> aligned(const Ints& classes, const LoD& lod, const CtcGreedy& options) {
  std::vector<bool> keep(classes.size());
  const auto offsets = lod.offsets(lod.depth() - 1);
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n)
    for (auto t = static_cast<std::size_t>(offsets[n]); std::cmp_less(t, offsets[n + 1]); ++t)
      keep[t] = classes[t] != options.blank && !(options.merge_repeated && std::cmp_greater(t, offsets[n]) && classes[t] == classes[t - 1]);
  return keep;
}

OpDef ctc_align_op() {
  OpDef def = define("ctc_align", {"X"}, {"Out"}, {"blank", "merge_repeated"});
  def.infer = [](InferContext& context) {
    expect_index_column(context, 0);
    context.attributes().get_or("blank", std::int64_t{0});
    context.attributes().get_or("merge_repeated", true);
    context.result(other_rows(context, 0, expect_lod(context, 0)));
  };
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const CtcGreedy options(context.attributes().get_or("blank", std::int64_t{0}), context.attributes().get_or("merge_repeated", true));
    return [options](OpContext& run) {
      const SequencePlan plan = make_keep_plan(run.lod(0), aligned(run.integers(0), run.lod(0), options));
      run.set(0, LoDTensor(gather_rows(on_stream(run.tensor(0), run.stream()), plan.rows, run.stream()), plan.lod));
    };
  };
  def.host_inputs = {0};
  needs_whole_sequences(def);
  return def;
}

// ---- ctc_loss ----

OpDef ctc_loss_op() {
  OpDef def = define("ctc_loss", {"X", "Label"}, {"Loss"}, {"blank", "zero_infinity"});
  def.infer = [](InferContext& context) {
    const int levels = infer_frames(context, context.attributes().get_or("blank", std::int64_t{0}));
    context.attributes().get_or("zero_infinity", false);
    expect_index_column(context, 1);
    expect_lod(context, 1);
    context.result(one_each(context.tensor(0).dtype, levels));
  };
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const CtcLoss options{context.attributes().get_or("blank", std::int64_t{0}), context.attributes().get_or("zero_infinity", false)};
    return [options](OpContext& run) {
      run.set(0, one_each(ctc_loss(run.tensor(0), run.lod(0), run.tensor(1), run.lod(1), options, run.stream()), run.lod(0)));
    };
  };
  needs_whole_sequences(def);
  return def;
}

OpDef ctc_gradient_op() {
  OpDef def = define("ctc_loss_gradient", {"X", "Label", "Gradient"}, {"Out"}, {"blank", "zero_infinity"});
  def.infer = [](InferContext& context) {
    infer_frames(context, context.attributes().get_or("blank", std::int64_t{0}));
    expect_index_column(context, 1);
    expect_lod(context, 1);
    expect_same_dtype(context, 0, 2);
    expect_rank(context, 2, 2);
    context.result(tensor_type(context.tensor(0).dtype, context.tensor(0).shape));
  };
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const CtcLoss options{context.attributes().get_or("blank", std::int64_t{0}), context.attributes().get_or("zero_infinity", false)};
    return [options](OpContext& run) {
      run.set(0, ctc_loss_gradient(run.tensor(0), run.lod(0), run.tensor(1), run.lod(1), run.tensor(2), options, run.stream()));
    };
  };
  needs_whole_sequences(def);
  return def;
}

void ctc_rule(GradientContext& c) {
  set(c, 0, call("ctc_loss_gradient", {with_lod(c, 0), with_lod(c, 1), gradient(c)}, c.op().attributes));
}

// ---- sequence_trim ----

void infer_trim(InferContext& context) {
  expect_index(context, 1);
  const int levels = expect_lod(context, 0);
  VarType rows(context.tensor(0).dtype, DDim{}, levels);
  rows.shape = context.tensor(0).shape;
  if (rows.shape) (*rows.shape)[0] = DDim::unknown;
  context.result(std::move(rows));
}

LoDTensor trimmed(const LoDTensor& x, const Ints& lengths, StreamRef stream) {
  const LoD& lod = x.lod();
  const int last = lod.depth() - 1;
  if (static_cast<std::int64_t>(lengths.size()) != lod.sequences(last))
    throw LoDError("expected a length for each of " + std::to_string(lod.sequences(last)) + " sequences, found " +
                   std::to_string(lengths.size()));
  const auto offsets = lod.offsets(last);
  Ints rows;
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    const std::int64_t most = offsets[n + 1] - offsets[n];
    if (lengths[n] < 0 || lengths[n] > most)
      throw LoDError("expected at most " + std::to_string(most) + " rows of sequence " + std::to_string(n) + ", found " +
                     std::to_string(lengths[n]));
    for (std::int64_t row = 0; row < lengths[n]; ++row) rows.push_back(offsets[n] + row);
  }
  const LoD kept = last == 0 ? LoD::from_lengths({lengths}) : lod.levels(0, last).append(lengths);
  return {gather_rows(x.tensor(), rows, stream), kept};
}

OpDef sequence_trim_op() {
  OpDef def = define("sequence_trim", {"X", "Lengths"}, {"Out"});
  def.infer = infer_trim;
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) { run.set(0, trimmed(run.in(0).tensor(), run.integers(1), run.stream())); };
  };
  def.host_inputs = {1};
  needs_whole_sequences(def);
  return def;
}

// ---- edit_distance ----

OpDef edit_distance_op() {
  OpDef def = define("edit_distance", {"Hyps", "Refs"}, {"Out", "SequenceNum"}, {"normalized", "ignored_tokens"});
  def.infer = [](InferContext& context) {
    expect_index(context, 0);
    expect_index(context, 1);
    expect_lod(context, 1);
    context.result(one_each(DType::f32, expect_lod(context, 0)));
    context.result(VarType(DType::i64, DDim{}));
  };
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const bool normalised = context.attributes().get_or("normalized", false);
    const Ints ignored = context.attributes().get_or("ignored_tokens", Ints{});
    return [normalised, ignored](OpContext& run) {
      const Tensor found = edit_distance(run.tensor(0), run.lod(0), run.tensor(1), run.lod(1), normalised, ignored, run.stream());
      const std::int64_t pairs = found.dim(0);
      run.set(0, one_each(found, run.lod(0)));
      run.set(1, Tensor::scalar(pairs));
    };
  };
  needs_whole_sequences(def);
  return def;
}

}  // namespace

void add_ctc_ops(OpRegistry& registry) {
  registry.add(ctc_op("ctc_greedy", greedy, {"blank", "merge_repeated"}));
  registry.add(ctc_op("ctc_beam_search", by_beam, {"blank", "width", "top", "paths"}));
  registry.add(ctc_align_op());
  registry.add(ctc_loss_op());
  registry.add(ctc_gradient_op());
  registry.set_gradient("ctc_loss", ctc_rule);
  registry.add(sequence_trim_op());
  registry.add(edit_distance_op());
}

}  // namespace millrace::ops
