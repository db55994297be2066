// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/ctc.h>
#include <millrace/kernels/edit_distance.h>
#include <millrace/kernels/gather.h>
#include <millrace/runtime/ops/internal/decoding.h>
#include <millrace/runtime/ops/internal/families.h>

namespace millrace::ops {
namespace {

// ---- ctc_greedy, ctc_beam_search ----

CtcBeam beam_of(const Attributes& attributes) {
  CtcBeam beam;
  beam.blank = attributes.get_or("blank", beam.blank);
  beam.width = attributes.get_or("width", beam.width);
  beam.top = attributes.get_or("top", beam.top);
  return beam;
}

void infer_ctc(InferContext& context) {
  expect_float(context, 0);
  expect_rank(context, 0, 2);
  const int levels = expect_lod(context, 0);
  const CtcBeam beam = beam_of(context.attributes());
  const std::int64_t classes = extent(context, 0, 1);
  if (beam.blank < 0 || (classes != DDim::unknown && beam.blank >= classes))
    throw ProgramError("expected a blank of " + (classes == DDim::unknown ? "its" : std::to_string(classes)) + " classes, found " +
                       std::to_string(beam.blank));
  if (beam.width < 1) throw ProgramError("expected a width of 1 or more, found " + std::to_string(beam.width));
  if (beam.top < 0) throw ProgramError("expected a top of 0 or more, found " + std::to_string(beam.top));
  context.result(VarType(DType::i64, DDim{extent(context, 0, 0), 1}, levels));
  context.result(one_each(DType::i64, levels));
  context.result(one_each(context.tensor(0).dtype, levels));
}

OpDef ctc_op(const char* name, CtcLabels (*search)(const OpContext&, const CtcBeam&)) {
  OpDef def;
  def.name = name;
  def.inputs = {"X"};
  def.outputs = {"Labels", "Lengths", "Score"};
  def.infer = infer_ctc;
  def.prepare = [search](const PrepareContext& context) -> OpKernel {
    return [search, beam = beam_of(context.attributes())](OpContext& run) {
      CtcLabels found = search(run, beam);
      run.set(0, LoDTensor(std::move(found.labels), run.lod(0)));
      run.set(1, one_each(std::move(found.lengths), run.lod(0)));
      run.set(2, one_each(std::move(found.scores), run.lod(0)));
    };
  };
  needs_whole_sequences(def);
  return def;
}

CtcLabels greedy(const OpContext& run, const CtcBeam& beam) { return ctc_greedy(run.tensor(0), run.lod(0), beam.blank, run.stream()); }
CtcLabels by_beam(const OpContext& run, const CtcBeam& beam) { return ctc_beam_search(run.tensor(0), run.lod(0), beam, run.stream()); }

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
  OpDef def;
  def.name = "sequence_trim";
  def.inputs = {"X", "Lengths"};
  def.outputs = {"Out"};
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
  OpDef def;
  def.name = "edit_distance";
  def.inputs = {"Hyps", "Refs"};
  def.outputs = {"Out", "SequenceNum"};
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
  registry.add(ctc_op("ctc_greedy", greedy));
  registry.add(ctc_op("ctc_beam_search", by_beam));
  registry.add(sequence_trim_op());
  registry.add(edit_distance_op());
}

}  // namespace millrace::ops
