// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/export/with_onnx/rules.h>

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

/// The ids from each row on, `pad_value` behind the end.
void enumerate(Exporter& to, const Op& op, const char*) {
  expect_one_level(to, op);
  const std::int64_t size = op.attributes.get<std::int64_t>("win_size");
  const std::string ids = to.reshaped(to.in(op, 0), {-1, 1});
  const std::string behind = to.number(to.type(op, 0).dtype, static_cast<double>(op.attributes.get_or("pad_value", std::int64_t{0})));
  const std::string all = to.node("Pad", {ids, to.ints({0, 0, size - 1, 0}), behind});
  const std::string n = to.length_of(ids);
  Names windows;
  for (std::int64_t k = 0; k < size; ++k) windows.push_back(shifted(to, all, n, k));
  to.bind(op.outputs[0], to.joined(windows, 1));
}

void erase(Exporter& to, const Op& op, const char*) {
  expect_one_level(to, op);
  to.bind(op.outputs[0], without(to, to.in(op, 0), to.type(op, 0).dtype, op.attributes.get_or("tokens", Ints{})));
}

/// The rows Offset … Offset + Length − 1.
void cut(Exporter& to, const Op& op, const char*) {
  expect_one_level(to, op);
  const std::string begin = to.reshaped(to.cast(to.in(op, 1), DType::i64), {1});
  const std::string end = to.node("Add", {begin, to.reshaped(to.cast(to.in(op, 2), DType::i64), {1})});
  to.give(op, "Slice", {to.in(op, 0), begin, end, to.ints({rows})});
}

/// The one row of X for each row of Y.
void expand(Exporter& to, const Op& op, const char* onnx) {
  expect_one_level(to, op);
  if (to.type(op, 0).lod_depth > 0) throw UnsupportedError("repeats whole sequences, which makes several of the one");
  expand_as(to, op, onnx);
}

void pad_sequence(Exporter& to, const Op& op, const char*) {
  expect_one_level(to, op);
  const std::string x = to.in(op, 0);
  const std::string n = to.reshaped(to.length_of(x), {1});
  const std::int64_t room = op.attributes.get_or("padded_length", std::int64_t{-1});
  std::string all = x;
  if (room >= 0) {
    const std::string value = Exporter::has(op, 1) ? to.in(op, 1) : to.number(to.type(op, 0).dtype, 0);
    const std::string extents = to.joined({to.node("Sub", {to.ints({room}), n}), to.node("Shape", {x}, {{"start", std::int64_t{1}}})});
    const bool one = !Exporter::has(op, 1) || to.type(op, 1).is_scalar();
    all = to.joined({x, to.node("Expand", {one ? to.reshaped(value, {}) : value, extents})});
  }
  to.bind(op.outputs[0], to.node("Unsqueeze", {all, to.ints({0})}));
  to.bind(op.outputs[1], n);
}

void unpad(Exporter& to, const Op& op, const char*) {
  const std::string all = to.node("Squeeze", {to.in(op, 0), to.ints({0})});
  to.give(op, "Slice", {all, to.ints({0}), to.reshaped(to.cast(to.in(op, 1), DType::i64), {1}), to.ints({rows})});
}

/// Adds to the one row of X.
void scatter(Exporter& to, const Op& op, const char* onnx) {
  expect_one_level(to, op);
  const std::string ids = to.reshaped(to.cast(to.in(op, 1), DType::i64), {1, -1});
  to.give(op, onnx, {to.in(op, 0), ids, to.reshaped(to.in(op, 2), {1, -1})},
          {{"axis", std::int64_t{1}}, {"reduction", std::string("add")}});
}

void top_rows(Exporter& to, const Op& op, const char* onnx) {
  expect_one_level(to, op);
  const std::string n = to.reshaped(to.length_of(to.in(op, 0)), {1});
  const std::string k = to.node("Min", {to.ints({op.attributes.get<std::int64_t>("k")}), n});
  const Names made = to.nodes(onnx, {to.in(op, 0), k}, 2, {{"axis", rows}});
  to.bind(op.outputs[0], made[0]);
  to.bind(op.outputs[1], made[1]);
}

void trim(Exporter& to, const Op& op, const char* onnx) {
  expect_one_level(to, op);
  to.give(op, onnx, {to.in(op, 0), to.ints({0}), to.reshaped(to.cast(to.in(op, 1), DType::i64), {1}), to.ints({rows})});
}

/// Rows stay rows of one sequence.
void reset(Exporter& to, const Op& op, const char*) {
  const bool like = Exporter::has(op, 2);
  if (!like || to.type(op.outputs[0]).lod_depth != 1) throw UnsupportedError("makes several sequences of one");
  to.bind(op.outputs[0], to.in(op, 0));
}

void expect_rows(const Exporter& to, const Op& op, std::size_t input) {
  if (op.attributes.get_or("level", std::int64_t{0}) != to.type(op, input).lod_depth)
    throw UnsupportedError("expected a mask of rows, found one of sequences");
}

void split_by_mask(Exporter& to, const Op& op, const char* onnx) {
  expect_one_level(to, op);
  expect_rows(to, op, 0);
  const std::string mask = to.reshaped(to.in(op, 1), {-1});
  to.bind(op.outputs[0], to.node(onnx, {to.in(op, 0), mask}, {{"axis", rows}}));
  to.bind(op.outputs[1], to.node(onnx, {to.in(op, 0), to.node("Not", {mask})}, {{"axis", rows}}));
}

/// Row i is the next one of the side that the mask says.
void merge_by_mask(Exporter& to, const Op& op, const char*) {
  expect_one_level(to, op);
  expect_rows(to, op, 0);
  const std::string mask = to.reshaped(to.in(op, 2), {-1});
  const auto before = [&](const std::string& side) {
    return to.node("CumSum", {to.cast(side, DType::i64), to.whole(0)}, {{"exclusive", std::int64_t{1}}});
  };
  const std::string second = to.node("Add", {before(to.node("Not", {mask})), to.length_of(to.in(op, 0))});
  to.bind(op.outputs[0], to.gathered(to.joined({to.in(op, 0), to.in(op, 1)}), to.node("Where", {mask, before(mask), second})));
}

constexpr Rule sequence_table[] = {
    {"sequence_enumerate", enumerate},
    {"sequence_erase", erase},
    {"sequence_slice", cut},
    {"sequence_expand", expand, "Expand"},
    {"sequence_pad", pad_sequence},
    {"sequence_unpad", unpad},
    {"sequence_scatter", scatter, "ScatterElements"},
    {"sequence_top_k", top_rows, "TopK"},
    {"sequence_trim", trim, "Slice"},
    {"lod_reset", reset},
    {"split_by_mask", split_by_mask, "Compress"},
    {"merge_by_mask", merge_by_mask},
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

std::string without(Exporter& to, const std::string& ids, DType dtype, const Ints& tokens) {
  if (tokens.empty()) return to.node("Identity", {ids});
  const std::string flat = to.reshaped(dtype == DType::i64 ? ids : to.cast(ids, DType::i64), {-1, 1});
  const std::string named = to.cast(to.node("Equal", {flat, to.ints(tokens)}), DType::i64);
  const std::string kept = to.node("Equal", {to.node("ReduceSum", {named, to.ints({1})}, {{"keepdims", std::int64_t{0}}}), to.whole(0)});
  return to.node("Compress", {ids, kept}, {{"axis", rows}});
}

std::span<const Rule> sequence_rules() { return sequence_table; }

}  // namespace millrace::exporting
