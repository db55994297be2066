// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cast.h>
#include <millrace/kernels/crf.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/runtime/program/ops/internal/decoding.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/gradients.h>
#include <millrace/tensor/copy.h>

namespace millrace::ops {
namespace {

/// Levels of LoD of the emissions.
int infer_crf(InferContext& context) {
  expect_float(context, 0);
  expect_same_dtype(context, 0, 1);
  expect_rank(context, 0, 2);
  expect_rank(context, 1, 2);
  const std::int64_t tags = same_extent(extent(context, 0, 1), extent(context, 1, 1), "tags of emission and transition");
  if (tags != DDim::unknown) expect_extent(context, 1, 0, tags + 2);
  return expect_lod(context, 0);
}

void expect_labels(const InferContext& context) {
  expect_index_column(context, 2);
  same_extent(extent(context, 0, 0), extent(context, 2, 0), "rows of emission and label");
}

/// 1 where a tag is that of the input Label, 0 elsewhere.
Tensor right_tags(const Tensor& tags, const OpContext& run) {
  check_same_lod(run, 2);
  const Tensor& label = run.tensor(2);
  if (label.elements() != tags.elements())
    throw ShapeError("crf_decoding: expected a label for each of " + std::to_string(tags.elements()) + " rows, found " + label.to_string());
  const Tensor wanted = cast(contiguous(label, run.stream()).reshape(tags.dims()), DType::i64, run.stream());
  return cast(equal(tags, wanted, run.stream()), DType::i64, run.stream());
}

OpDef crf_decoding_op() {
  OpDef def = define("crf_decoding", {"Emission", "Transition", "Label?"}, {"ViterbiPath", "Score"});
  def.infer = [](InferContext& context) {
    const int levels = infer_crf(context);
    if (context.has(2)) expect_labels(context);
    context.result(VarType(DType::i64, DDim{extent(context, 0, 0), 1}, levels));
    context.result(one_each(context.tensor(0).dtype, levels));
  };
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) {
      CrfPath path = crf_viterbi(run.tensor(0), run.tensor(1), run.lod(0), run.stream());
      run.set(0, LoDTensor(run.has(2) ? right_tags(path.tags, run) : std::move(path.tags), run.lod(0)));
      run.set(1, one_each(std::move(path.scores), run.lod(0)));
    };
  };
  needs_whole_sequences(def);
  return def;
}

OpDef linear_chain_crf_op() {
  OpDef def = define("linear_chain_crf", {"Emission", "Transition", "Label"}, {"LogLikelihood"});
  def.infer = [](InferContext& context) {
    const int levels = infer_crf(context);
    expect_labels(context);
    context.result(one_each(context.tensor(0).dtype, levels));
  };
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) {
      check_same_lod(run, 2);
      run.set(0, one_each(crf_log_likelihood(run.tensor(0), run.tensor(1), run.tensor(2), run.lod(0), run.stream()), run.lod(0)));
    };
  };
  needs_whole_sequences(def);
  return def;
}

OpDef crf_gradient_op() {
  OpDef def =
      define("linear_chain_crf_gradient", {"Emission", "Transition", "Label", "Gradient"}, {"EmissionGradient", "TransitionGradient"});
  def.infer = [](InferContext& context) {
    infer_crf(context);
    expect_labels(context);
    expect_same_dtype(context, 0, 3);
    expect_rank(context, 3, 2);
    for (const std::size_t input : {0, 1}) context.result(tensor_type(context.tensor(0).dtype, context.tensor(input).shape));
  };
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) {
      check_same_lod(run, 2);
      CrfGradient made = crf_log_likelihood_gradient(run.tensor(0), run.tensor(1), run.tensor(2), run.tensor(3), run.lod(0), run.stream());
      run.set(0, std::move(made.emission));
      run.set(1, std::move(made.weights));
    };
  };
  needs_whole_sequences(def);
  return def;
}

void crf_rule(GradientContext& c) {
  const std::vector<Term> made = call_all("linear_chain_crf_gradient", {with_lod(c, 0), value(c, 1), with_lod(c, 2), gradient(c)});
  for (const std::size_t input : {0, 1})
    if (c.wants(input)) set(c, input, made[input]);
}

}  // namespace

void add_crf_ops(OpRegistry& registry) {
  registry.add(crf_decoding_op());
  registry.add(linear_chain_crf_op());
  registry.add(crf_gradient_op());
  registry.set_gradient("linear_chain_crf", crf_rule);
}

}  // namespace millrace::ops
