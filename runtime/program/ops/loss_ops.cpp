// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include <millrace/kernels/cast.h>
#include <millrace/kernels/cross_entropy.h>
#include <millrace/kernels/dropout.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/gradients.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/runtime/program/ops/internal/sequences.h>
#include <millrace/tensor/copy.h>

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

/// A label for each row of `x`, as i64.
Tensor labels_of(const char* name, const Tensor& x, const Tensor& given, StreamRef stream) {
  if (x.rank() != 2 || given.elements() != x.dim(0))
    throw ShapeError(std::string(name) + ": expected a label for each row of " + x.to_string() + ", found " + given.to_string());
  return cast(contiguous(given, stream), DType::i64, stream);
}

OpKernel prepare_cross_entropy(const PrepareContext& context) {
  return [ignore = ignored(context.attributes())](OpContext& run) {
    const Tensor& x = run.tensor(0);
    const Tensor labels = labels_of("softmax_cross_entropy", x, run.tensor(1), run.stream());
    run.set(0, cross_entropy(x, labels, ignore, run.stream()));
  };
}

std::vector<int> follow_cross_entropy(const InferContext& context, const std::vector<int>& axes) {
  std::size_t rows = axes.size();
  for (std::size_t input = 0; input < axes.size(); ++input) {
    if (axes[input] > 0) refuse_rows("normalises over the rows");
    if (axes[input] == 0) rows = input;
  }
  if (rows == axes.size()) return {-1};
  for (std::size_t input = 0; input < axes.size(); ++input)
    if (axes[input] < 0) check_same_for_each_row(context, input, 0, extent(context, rows, 0));
  return {0};
}

/// Rows of all sequences, one behind the other.
void vectorize_cross_entropy(Vectorizer& v, const Op& op) {
  const VarId like = any_batched_var(v, op);
  std::vector<VarId> inputs;
  for (const VarId input : op.inputs) inputs.push_back(merge_leading(v, batched_var(v, input, like), input));
  v.bind(op.outputs[0], split_leading(v, v.emit(op.type, inputs, op.attributes).at(0), like), true);
}

/// g·(softmax(x) − one_hot(label)), 0 in ignored rows.
void cross_entropy_rule(GradientContext& c) {
  const DType given = c.input_type(0).dtype, dtype = summing(given);
  const Attributes attributes{{"ignore_index", ignored(c.op().attributes)}};
  set(c, 0,
      cast_to(call("softmax_cross_entropy_gradient", {cast_to(gradient(c), dtype), cast_to(value(c, 0), dtype), value(c, 1)}, attributes),
              given));
}

// ---- softmax_cross_entropy_gradient ----

enum : std::size_t { of_losses, of_x, of_labels };

void infer_cross_entropy_gradient(InferContext& context) {
  ignored(context.attributes());
  expect_float(context, of_x);
  for (const std::size_t input : {of_losses, of_x}) expect_rank(context, input, 2);
  expect_index_column(context, of_labels);
  if (context.tensor(of_losses).dtype != context.tensor(of_x).dtype)
    throw ProgramError("expected a gradient of the dtype of " + context.describe(of_x) + ", found " + context.describe(of_losses));
  same_extent(extent(context, of_losses, 1), 1, "columns of the gradient of a loss");
  const std::int64_t rows = same_extent(extent(context, of_x, 0), extent(context, of_labels, 0), "rows of scores and labels");
  context.result(VarType(context.tensor(of_x).dtype, DDim{rows, extent(context, of_x, 1)}));
}

OpKernel prepare_cross_entropy_gradient(const PrepareContext& context) {
  return [ignore = ignored(context.attributes())](OpContext& run) {
    const Tensor& x = run.tensor(of_x);
    const Tensor labels = labels_of("softmax_cross_entropy_gradient", x, run.tensor(of_labels), run.stream());
    run.set(0, cross_entropy_gradient(run.tensor(of_losses), x, labels, ignore, run.stream()));
  };
}

/// The gradients of the plain ops that it stands for.
void cross_entropy_gradient_rule(GradientContext& c) {
  const DType given = c.input_type(of_x).dtype, dtype = summing(given);
  Tape tape(c);
  const Term g = tape.leaf(cast_to(value(c, of_losses), dtype)), x = tape.leaf(cast_to(value(c, of_x), dtype));
  const Term labels = tape.leaf(reshaped_to(cast_to(value(c, of_labels), DType::i64), {-1}));
  const std::int64_t classes = (*c.input_type(of_x).shape)[1];
  const Term depth = classes == DDim::unknown ? extent_of(x, 1) : number(tape.at(), static_cast<double>(classes), DType::i64);
  const Term off_on = cast_to(Term(tape.at(), tape.at().append1("constant", {}, {{"value", Tensor::from({0.0, 1.0})}})), dtype);
  const Term right = call("one_hot", {labels, depth, off_on}, {{"axis", std::int64_t{-1}}});
  const Term made = g * (call("softmax", {x}, {{"axis", std::int64_t{-1}}}) - right);
  const Term counts = unsqueezed(compare("not_equal", labels, static_cast<double>(ignored(c.op().attributes))), {1});
  const Term y = masked(counts, made);
  tape.seed(y, cast_to(gradient(c), dtype));
  tape.run({g, x});
  if (c.wants(of_losses)) set(c, of_losses, cast_to(tape.gradient_of(g), given));
  if (c.wants(of_x)) set(c, of_x, cast_to(tape.gradient_of(x), given));
}

OpDef cross_entropy_gradient_op() {
  OpDef def = define("softmax_cross_entropy_gradient", {"Gradient", "X", "Label"}, {"Out"}, {"ignore_index"});
  def.infer = infer_cross_entropy_gradient;
  def.prepare = prepare_cross_entropy_gradient;
  def.follow_rows = follow_cross_entropy;
  def.vectorize = vectorize_cross_entropy;
  def.gradient = cross_entropy_gradient_rule;
  return def;
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
  registry.add(cross_entropy_gradient_op());
  OpDef def = define("softmax_cross_entropy", {"X", "Label"}, {"Loss"}, {"ignore_index"});
  def.infer = infer_cross_entropy;
  def.prepare = prepare_cross_entropy;
  def.follow_rows = follow_cross_entropy;
  def.vectorize = vectorize_cross_entropy;
  def.gradient = cross_entropy_rule;
  registry.add(std::move(def));
}

}  // namespace millrace::ops
