// SPDX-License-Identifier: Apache-2.0
// Ops along the rows of a sequence: the rows before that they need become a state.
#include <algorithm>

#include <fmt/format.h>

#include <millrace/runtime/lowering/internal/step_builder.h>
#include <millrace/tensor/checked.h>

namespace millrace::lowering {
namespace {

using Ints = std::vector<std::int64_t>;

}  // namespace

/// A convolution along the rows: causal when its window ends at the row itself; the rows before are its left context.
void StepBuilder::eval_conv(const Op& op, const std::vector<Symbol>& inputs) {
  const Ints pads = op.attributes.get_or<Ints>("pads", Ints{0, 0});
  const std::int64_t dilation = op.attributes.get_or<std::int64_t>("dilation", 1);
  const std::int64_t context = checked_mul(dilation, (*type_of(inputs[1]).shape)[2] - 1);
  if (op.attributes.get_or<std::int64_t>("stride", 1) != 1) refuse(op, "its stride along the rows is not 1");
  if (inputs[1].is(Kind::step)) refuse(op, "its weights depend on the rows");
  if (inputs[0].first) refuse(op, inputs[0].deviates);
  Symbol x = inputs[0];
  if (pads.at(1) > 0) x = padded(x, 0, pads.at(1), fmt::format("{}: needs {} rows to the right of its own", named(op), pads.at(1)));
  if (pads.at(0) > 0) x = padded(x, pads.at(0), 0, "");
  const std::int64_t left = x.left_pad - context, right = x.right_pad;
  std::string why = x.right_pad > 0 ? x.deviates : "";
  if (left != 0 && why.empty())
    why = fmt::format("{}: expected {} zeros before the first row, as its window reaches back, found {}", named(op), context, x.left_pad);
  Attributes attributes = op.attributes;
  attributes.set("pads", Ints{0, 0});
  const auto convolved = [&](const Symbol& rows, int axis) {
    std::vector<Symbol> all{rows};
    all.insert(all.end(), inputs.begin() + 1, inputs.end());
    return apply("conv1d", all, attributes, axis)[0];
  };
  const Symbol before = left > 0 ? convolved(rows_before(x, context + 1), -1) : Symbol();
  const Symbol rows_of_context = context > 0 ? rows_before(x, context) : Symbol();
  x.left_pad = x.right_pad = 0;
  if (context > 0) {
    const std::string name = program_.var(op.outputs[0]).name;
    const std::size_t state =
        add_state("context of " + name, fmt::format("left context of conv1d '{}', {} rows", name, context), rows_of_context, 0);
    const int phase = x.phase;
    x = apply("concat", {state_at(state, phase, -1, x.clock), x}, {{"axis", std::int64_t{2}}}, -1)[0];
    next_[state][phase] =
        apply("slice", {x}, {{"starts", Ints{1}}, {"ends", Ints{context + 1}}, {"axes", Ints{2}}, {"steps", Ints{1}}}, -1)[0];
  }
  Symbol made = convolved(x, 2);
  made.left_pad = left;
  made.right_pad = right;
  made.deviates = why;
  if (left > 0) take_before(made, before);
  bind(op.outputs[0], std::move(made));
}

/// The sum of the rows up to each one is a state. False where the op adds up something else, or rows that no step knows.
bool StepBuilder::eval_running_sum(const Op& op, const Symbol& x) {
  const int rank = type_of(x).rank();
  const std::int64_t axis = op.attributes.get_or("axis", std::int64_t{0});
  const DType dtype = type_of(x).dtype;
  const bool wide = dtype == DType::f32 || dtype == DType::f64 || dtype == DType::i32 || dtype == DType::i64;  // others round each sum
  if (!x.is(Kind::step) || x.rows < 0 || (axis < 0 ? axis + rank : axis) != x.rows || ragged_ || !wide ||
      op.attributes.get_or("reverse", false))
    return false;
  expect_row_each_step(op, x);
  const std::string name = program_.var(op.outputs[0]).name;
  const std::size_t state =
      add_state("sum of " + name, fmt::format("the sum of the rows before, of cumsum '{}'", name), zeros_like(x, x.rows, 1), 0);
  const Symbol before = state_at(state, x.phase, x.rows, x.clock);
  const Symbol sum = apply("add", {before, x}, {}, x.rows)[0];
  next_[state][x.phase] = sum;
  bind(op.outputs[0], op.attributes.get_or("exclusive", false) ? before : sum);
  return true;
}

/// A convolution of rows that lie first: a product of the row and of those that its window reaches back to.
void StepBuilder::eval_sequence_conv(const Op& op, const std::vector<Symbol>& inputs) {
  const auto length = op.attributes.get<std::int64_t>("context_length");
  const std::int64_t start = op.attributes.get_or<std::int64_t>("context_start", 0);
  if (start + length > 1) refuse(op, fmt::format("needs {} rows after its own", start + length - 1));
  expect_row_each_step(op, inputs[0]);
  if (inputs[1].is(Kind::step)) refuse(op, "its filter depends on the rows");
  const bool bordered = inputs.size() > 2 && op.inputs[2] != no_var;
  if (bordered && inputs[2].is(Kind::step)) refuse(op, "its padding depends on the rows");
  const auto rows_of = [&](const Symbol& x, std::int64_t begin, std::int64_t end) {
    return apply("slice", {x}, {{"starts", Ints{begin}}, {"ends", Ints{end}}, {"axes", Ints{0}}, {"steps", Ints{1}}}, -1)[0];
  };
  Symbol x = inputs[0];
  const std::int64_t channels = (*type_of(x).shape)[1];
  if (start < 0) {
    Tensor zeros(type_of(x).dtype, DDim{-start, channels});
    std::fill_n(static_cast<std::byte*>(zeros.raw_mutable()), zeros.bytes(), std::byte{0});
    zeros.storage()->mark_written();
    const Symbol before = bordered ? inputs[2] : Symbol{.kind = Kind::constant, .value = zeros};
    const std::string name = program_.var(op.outputs[0]).name;
    const std::size_t state =
        add_state("context of " + name, fmt::format("left context of sequence_conv '{}', {} rows", name, -start), before, x.clock - 1);
    const int phase = x.phase;
    const Symbol seen = apply("concat", {state_at(state, phase, -1, x.clock), x}, {{"axis", std::int64_t{0}}}, -1)[0];
    next_[state][phase] = rows_of(seen, 1, 1 - start);
    x = rows_of(seen, 0, length);
  }
  const Symbol window = apply("reshape", {x}, {{"shape", Ints{1, length * channels}}}, -1)[0];
  bind(op.outputs[0], apply("matmul", {window, inputs[1]}, {}, 0)[0]);
}

/// The last row of an inner sequence, known when it closes. False: not that.
bool StepBuilder::eval_pool(const Op& op, const std::vector<Symbol>& inputs) {
  const Symbol& x = inputs[0];
  const int depth = program_.var(op.inputs[0]).type.lod_depth;
  const auto wanted = static_cast<int>(op.attributes.get_or<std::int64_t>("level", -1));
  const int level = x.clock - depth + (wanted < 0 ? wanted + depth : wanted);
  if (!x.is(Kind::step) || x.rows != 0 || !x.has_row_each_step() || level < 1 || op.attributes.get<std::string>("kind") != "last")
    return false;
  const VarType type = type_of(x);
  const Tensor empty = Tensor::scalar(op.attributes.get_or("empty", 0.0));
  Ints extents;
  for (int axis = 0; axis < type.rank(); ++axis) extents.push_back((*type.shape)[axis]);
  const Symbol shape{.kind = Kind::constant, .value = Tensor::from(extents, DDim{type.rank()})};
  const Symbol rows = apply("constant_of_shape", {shape}, {{"value", empty}}, -1)[0];
  const Symbol initial = apply("cast", {rows}, {{"to", type.dtype}}, -1)[0];
  const std::string name = program_.var(op.outputs[0]).name;
  const std::size_t state = add_state(name, fmt::format("last row of '{}' in a sequence of level {}", x.origin, level), initial, level);
  next_[state][x.phase] = x;
  bind(op.outputs[0], state_at(state, sequence_closes(level), 0, level));
  return true;
}

}  // namespace millrace::lowering
