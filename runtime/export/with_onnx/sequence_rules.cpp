// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/export/with_onnx/rules.h>

/// Ops over whole sequences, for the one sequence that rows with LoD are in ONNX.
namespace millrace::exporting {
namespace {

constexpr std::int64_t rows = 0;  // the axis

void expect_one_level(const Exporter& to, const Op& op) {
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    if (Exporter::has(op, i) && to.type(op, i).lod_depth > 1)
      throw UnsupportedError("expected one level of LoD, found " + to.type(op, i).to_string());
}

void pool(Exporter& to, const Op& op, const char*) {
  expect_one_level(to, op);
  const std::string kind = op.attributes.get<std::string>("kind");
  const std::string x = to.in(op, 0);
  const DType dtype = to.type(op, 0).dtype;
  const std::string n = to.length_of(x);
  const auto over_rows = [&](const char* onnx) { return to.node(onnx, {x, to.ints({rows})}, {{"keepdims", std::int64_t{1}}}); };
  const auto row = [&](std::int64_t begin, std::int64_t end) {
    return to.node("Slice", {x, to.ints({begin}), to.ints({end}), to.ints({rows})});
  };
  const auto pooled = [&]() -> std::string {
    if (kind == "first") return row(0, 1);
    if (kind == "last") return row(-1, std::numeric_limits<std::int64_t>::max());
    if (kind == "max") return over_rows("ReduceMax");
    if (kind == "average") return over_rows("ReduceMean");
    if (kind == "sum") return over_rows("ReduceSum");
    if (kind != "sqrt") throw UnsupportedError("kind '" + kind + "' has no counterpart");
    const std::string count = to.node("Cast", {n}, {{"to", std::int64_t{onnx_type(dtype)}}});
    return to.node("Div", {over_rows("ReduceSum"), to.node("Sqrt", {count})});
  };
  const auto empty = [&] {
    const std::string extents =
        to.node("Concat", {to.ints({1}), to.node("Shape", {x}, {{"start", std::int64_t{1}}})}, {{"axis", std::int64_t{0}}});
    return to.node("Expand", {to.number(dtype, op.attributes.get_or("empty", 0.0)), extents});
  };
  to.bind(op.outputs[0], to.choose(to.node("Equal", {n, to.whole(0)}), to.type(op.outputs[0]), empty, pooled));
}

void softmax(Exporter& to, const Op& op, const char* onnx) {
  expect_one_level(to, op);
  to.give(op, onnx, to.all_in(op), {{"axis", rows}});
}

void reverse(Exporter& to, const Op& op, const char*) {
  expect_one_level(to, op);
  to.bind(op.outputs[0], to.flipped(to.in(op, 0), rows));
}

void concat(Exporter& to, const Op& op, const char* onnx) {
  expect_one_level(to, op);
  to.give(op, onnx, to.all_in(op), {{"axis", rows}});
}

void reshape(Exporter& to, const Op& op, const char* onnx) {
  expect_one_level(to, op);
  to.give(op, onnx, {to.in(op, 0), to.ints({-1, op.attributes.get<std::int64_t>("new_dim")})});
}

/// `x` with rows of zeros around it, of which the T from `at` on are shifted ones.
std::string padded(Exporter& to, const Op& op, std::int64_t before, std::int64_t behind) {
  const int rank = to.rank(op, 0);
  Ints pads(static_cast<std::size_t>(2 * rank), 0);
  pads[0] = before;
  pads[static_cast<std::size_t>(rank)] = behind;
  return to.node("Pad", {to.in(op, 0), to.ints(pads)});
}

std::string shifted(Exporter& to, const std::string& padded, const std::string& rows_of_x, std::int64_t at) {
  const std::string begin = to.ints({at});
  const std::string count = to.node("Reshape", {rows_of_x, to.ints({1})});
  return to.node("Slice", {padded, begin, to.node("Add", {count, begin}), to.ints({rows})});
}

/// The rows of input 0 between those of input 2, of which the first `before` come first.
std::string with_borders(Exporter& to, const Op& op, std::int64_t before) {
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    return to.node("Slice", {to.in(op, 2), to.ints({begin}), to.ints({end}), to.ints({rows})});
  };
  const std::int64_t far = std::numeric_limits<std::int64_t>::max();
  return to.node("Concat", {part(0, before), to.in(op, 0), part(before, far)}, {{"axis", std::int64_t{0}}});
}

void sequence_conv(Exporter& to, const Op& op, const char* onnx) {
  expect_one_level(to, op);
  const std::int64_t length = op.attributes.get<std::int64_t>("context_length");
  const std::int64_t start = op.attributes.get_or("context_start", std::int64_t{0});
  const std::int64_t before = std::max<std::int64_t>(0, -start);
  const bool bordered = Exporter::has(op, 2);
  const std::int64_t behind = std::max<std::int64_t>(0, start + length - 1);
  const std::string all = bordered ? with_borders(to, op, before) : padded(to, op, before, behind);
  const std::string n = to.length_of(to.in(op, 0));
  Names windows;
  for (std::int64_t k = 0; k < length; ++k) windows.push_back(shifted(to, all, n, before + start + k));
  to.give(op, onnx, {to.node("Concat", windows, {{"axis", std::int64_t{1}}}), to.in(op, 1)});
}

void row_conv(Exporter& to, const Op& op, const char*) {
  expect_one_level(to, op);
  const VarType& filter = to.type(op, 1);
  if (filter.rank() != 2 || (*filter.shape)[0] < 1)
    throw UnsupportedError("expected a filter of known length, found " + filter.to_string());
  const std::int64_t length = (*filter.shape)[0];
  const std::string all = padded(to, op, 0, length - 1);
  const std::string n = to.length_of(to.in(op, 0));
  std::string sum;
  for (std::int64_t k = 0; k < length; ++k) {
    const std::string part =
        to.node("Mul", {shifted(to, all, n, k), to.node("Gather", {to.in(op, 1), to.whole(k)}, {{"axis", std::int64_t{0}}})});
    sum = sum.empty() ? part : to.node("Add", {sum, part});
  }
  to.bind(op.outputs[0], sum);
}

/// The one row of X for each row of Y.
void expand_as(Exporter& to, const Op& op, const char* onnx) {
  expect_one_level(to, op);
  const std::string rows_of_y = to.node("Shape", {to.in(op, 1)}, {{"start", std::int64_t{0}}, {"end", std::int64_t{1}}});
  const std::string rest = to.node("Shape", {to.in(op, 0)}, {{"start", std::int64_t{1}}});
  to.give(op, onnx, {to.in(op, 0), to.node("Concat", {rows_of_y, rest}, {{"axis", std::int64_t{0}}})});
}

void mask(Exporter& to, const Op& op, const char*) {
  const std::string lengths = to.node("Cast", to.all_in(op), {{"to", std::int64_t{onnx_type(DType::i64)}}});
  const std::int64_t most = op.attributes.get_or("maxlen", std::int64_t{-1});
  if (Exporter::has(op, 1)) throw UnsupportedError("takes its length from an input");
  const std::string longest = most >= 0 ? to.whole(most) : to.node("ReduceMax", {lengths}, {{"keepdims", std::int64_t{0}}});
  const std::string places = to.node("Range", {to.whole(0), longest, to.whole(1)});
  const std::string in_front = to.node("Less", {places, to.node("Unsqueeze", {lengths, to.ints({-1})})});
  to.give(op, "Cast", {in_front}, {{"to", std::int64_t{onnx_type(op.attributes.get_or("to", DType::i64))}}});
}

constexpr Rule rules[] = {
    {"sequence_pool", pool},
    {"sequence_softmax", softmax, "Softmax"},
    {"sequence_reverse", reverse},
    {"sequence_concat", concat, "Concat"},
    {"sequence_reshape", reshape, "Reshape"},
    {"sequence_conv", sequence_conv, "MatMul"},
    {"row_conv", row_conv},
    {"sequence_expand_as", expand_as, "Expand"},
    {"sequence_mask", mask},
};

}  // namespace

std::span<const Rule> sequence_rules() { return rules; }

}  // namespace millrace::exporting
