// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/kernels/cast.h>
#include <millrace/kernels/dropout.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/kernels/softmax.h>
#include <millrace/kernels/unary.h>
#include <millrace/kernels/where.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/gradients.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/runtime/program/ops/internal/sequences.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace::ops {
namespace {

// ---- softmax_cross_entropy ----

constexpr std::int64_t no_label = -100;

std::int64_t ignored(const Attributes& attributes) { return attributes.get_or("ignore_index", no_label); }

void infer_cross_entropy(InferContext& context) {
  ignored(context.attributes());
  expect_float(context, 0);
  expect_rank(context, 0, 2);
  expect_index_column(context, 1);
  context.result(
      VarType(context.tensor(0).dtype, DDim{same_extent(extent(context, 0, 0), extent(context, 1, 0), "rows of scores and labels"), 1}));
}

/// IndexError, which fails the stream of a CPU, for a label that is no class. On a device `gather_elements` refuses it.
void check_labels(const Tensor& labels, std::int64_t classes, std::int64_t ignore, StreamRef stream) {
  if (!stream.place().is_cpu()) return;
  const auto check = [labels, classes, ignore](const auto&) {
    const auto* all = static_cast<const std::int64_t*>(labels.raw());
    for (std::int64_t row = 0; row < labels.elements(); ++row)
      if (all[row] != ignore && (all[row] < 0 || all[row] >= classes))
        throw IndexError("softmax_cross_entropy: expected one of " + std::to_string(classes) + " classes as the label of row " +
                         std::to_string(row) + ", found " + std::to_string(all[row]));
  };
  launch(TensorRefs<1>{&labels}, TensorRefs<0>{}, check, stream);
}

/// The labels of rows that count, others as 0; a label that is no class as one behind the last, which `gather_elements` refuses.
Tensor checked_labels(const Tensor& labels, std::int64_t classes, std::int64_t ignore, StreamRef stream) {
  const auto i64 = [&](std::int64_t value) { return full(DDim{}, static_cast<double>(value), DType::i64, stream); };
  const Tensor outside = where(less(labels, i64(0), stream), i64(classes), labels, stream);
  return where(equal(labels, i64(ignore), stream), i64(0), outside, stream);
}

OpKernel prepare_cross_entropy(const PrepareContext& context) {
  return [ignore = ignored(context.attributes())](OpContext& run) {
    const Tensor& x = run.tensor(0);
    const StreamRef stream = run.stream();
    if (x.rank() != 2 || run.tensor(1).elements() != x.dim(0))
      throw ShapeError("softmax_cross_entropy: expected a label for each row of " + x.to_string() + ", found " + run.tensor(1).to_string());
    const Tensor labels = cast(contiguous(run.tensor(1), stream), DType::i64, stream).reshape(DDim{x.dim(0), 1});
    check_labels(labels, x.dim(1), ignore, stream);
    const Tensor picked = gather_elements(log_softmax(x, 1, stream), checked_labels(labels, x.dim(1), ignore, stream), 1, stream);
    const Tensor counts = not_equal(labels, full(DDim{}, static_cast<double>(ignore), DType::i64, stream), stream);
    run.set(0, where(counts, unary(Unary::neg, {}, picked, stream), full(DDim{}, 0, x.dtype(), stream), stream));
  };
}

std::vector<int> follow_cross_entropy(const InferContext& context, const std::vector<int>& axes) {
  if (axes[0] > 0 || axes[1] > 0) refuse_rows("normalises over the rows");
  if (axes[0] < 0 && axes[1] < 0) return {-1};
  for (const std::size_t input : {0, 1})
    if (axes[input] < 0) check_same_for_each_row(context, input, 0, extent(context, 1 - input, 0));
  return {0};
}

/// Rows of all sequences, one behind the other.
void vectorize_cross_entropy(Vectorizer& v, const Op& op) {
  const VarId like = any_batched_var(v, op);
  std::vector<VarId> inputs;
  for (const VarId input : op.inputs) inputs.push_back(merge_leading(v, batched_var(v, input, like), input));
  v.bind(op.outputs[0], split_leading(v, v.emit("softmax_cross_entropy", inputs, op.attributes).at(0), like), true);
}

/// g·(softmax(x) − one_hot(label)), 0 in ignored rows.
void cross_entropy_rule(GradientContext& c) {
  const DType given = c.input_type(0).dtype, dtype = summing(given);
  const Term x = cast_to(value(c, 0), dtype);
  const Term labels = reshaped_to(cast_to(value(c, 1), DType::i64), {-1});
  const std::int64_t classes = (*c.input_type(0).shape)[1];
  const Term depth = classes == DDim::unknown ? extent_of(x, 1) : number(c, static_cast<double>(classes), DType::i64);
  Tensor values = Tensor::from({0.0, 1.0});
  const Term off_on = cast_to(Term(c, c.append1("constant", {}, {{"value", values}})), dtype);
  const Term right = call("one_hot", {labels, depth, off_on}, {{"axis", std::int64_t{-1}}});
  const Term made = cast_to(gradient(c), dtype) * (call("softmax", {x}, {{"axis", std::int64_t{-1}}}) - right);
  const Term counts = unsqueezed(compare("not_equal", labels, static_cast<double>(ignored(c.op().attributes))), {1});
  set(c, 0, cast_to(masked(counts, made), given));
}

// ---- dropout ----

enum : std::size_t { drop_x, drop_sample, drop_step, drop_epoch };

DropoutOptions dropout_options(const Attributes& attributes) {
  DropoutOptions options;
  options.rate = attributes.get_or("rate", 0.5);
  options.seed = static_cast<std::uint64_t>(attributes.get_or("seed", std::int64_t{0}));
  options.number = static_cast<std::uint64_t>(attributes.get_or("number", std::int64_t{0}));
  if (!(options.rate >= 0 && options.rate <= 1))
    throw ProgramError("attribute 'rate': expected 0 to 1, found " + std::to_string(options.rate));
  return options;
}

bool trains(const Attributes& attributes) { return attributes.get_or("training", true); }

void infer_dropout(InferContext& context) {
  dropout_options(context.attributes());
  trains(context.attributes());
  expect_float(context, drop_x);
  if (context.tensor(drop_x).rank() == 0) throw ProgramError("expected rows, found " + context.describe(drop_x));
  expect_index_column(context, drop_sample);
  same_extent(extent(context, drop_x, 0), extent(context, drop_sample, 0), "rows and samples");
  if (context.has(drop_step)) expect_index(context, drop_step);
  if (context.has(drop_epoch)) {
    expect_index(context, drop_epoch);
    expect_scalar(context, drop_epoch);
  }
  context.result(tensor_type(context.tensor(drop_x).dtype, context.tensor(drop_x).shape));
}

OpKernel prepare_dropout(const PrepareContext& context) {
  if (!trains(context.attributes())) return [](OpContext& run) { run.set(0, run.tensor(drop_x)); };
  return [options = dropout_options(context.attributes())](OpContext& run) {
    const auto part = [&](std::size_t input) { return run.has(input) ? &run.tensor(input) : nullptr; };
    run.set(0, dropout(run.tensor(drop_x), run.tensor(drop_sample), part(drop_step), part(drop_epoch), options, run.stream()));
  };
}

std::vector<int> follow_dropout(const InferContext& context, const std::vector<int>& axes) {
  for (const int axis : axes)
    if (axis > 0) refuse_rows("numbers the rows along its first axis");
  if (std::all_of(axes.begin(), axes.end(), [](int axis) { return axis < 0; })) return {-1};
  for (const std::size_t input : {drop_x, drop_sample})
    if (axes[input] < 0) check_same_for_each_row(context, input, 0, DDim::unknown);
  if (axes.size() > drop_epoch && axes[drop_epoch] >= 0) refuse_rows("has an epoch for each row");
  return {0};
}

/// Rows of all sequences, one behind the other.
void vectorize_dropout(Vectorizer& v, const Op& op) {
  const VarId like = any_batched_var(v, op);
  std::vector<VarId> inputs;
  for (const std::size_t input : {drop_x, drop_sample})
    inputs.push_back(merge_leading(v, batched_var(v, op.inputs[input], like), op.inputs[input]));
  for (std::size_t input = drop_step; input < op.inputs.size(); ++input) {
    const bool each = op.inputs[input] != no_var && (v.batched(op.inputs[input]) || v.rank(op.inputs[input]) > 0);
    if (input == drop_step && each && v.rank(op.inputs[input]) > 0) {
      inputs.push_back(merge_leading(v, batched_var(v, op.inputs[input], like), op.inputs[input]));
      continue;
    }
    expect_shared(v, op, input, input == drop_step ? "a step for all rows" : "an epoch");
    inputs.push_back(v.get(op.inputs[input]));
  }
  v.bind(op.outputs[0], split_leading(v, v.emit("dropout", inputs, op.attributes).at(0), like), true);
}

/// The same elements are dropped of the gradient.
void dropout_rule(GradientContext& c) {
  std::vector<Term> inputs{gradient(c)};
  for (std::size_t input = drop_sample; input < c.op().inputs.size(); ++input) inputs.push_back(c.has(input) ? value(c, input) : Term());
  set(c, drop_x, call("dropout", inputs, c.op().attributes));
}

OpDef dropout_op() {
  OpDef def = define("dropout", {"X", "Sample", "Step?", "Epoch?"}, {"Out"}, {"rate", "seed", "number", "training"});
  def.infer = infer_dropout;
  def.prepare = prepare_dropout;
  def.follow_rows = follow_dropout;
  def.vectorize = vectorize_dropout;
  def.gradient = dropout_rule;
  return def;
}

}  // namespace

void add_loss_ops(OpRegistry& registry) {
  registry.add(dropout_op());
  OpDef def = define("softmax_cross_entropy", {"X", "Label"}, {"Loss"}, {"ignore_index"});
  def.infer = infer_cross_entropy;
  def.prepare = prepare_cross_entropy;
  def.follow_rows = follow_cross_entropy;
  def.vectorize = vectorize_cross_entropy;
  def.gradient = cross_entropy_rule;
  registry.add(std::move(def));
}

}  // namespace millrace::ops
