// SPDX-License-Identifier: Apache-2.0
// Sequences with more or fewer rows than the input: padded before the first row, cut, or looked at some steps later.
#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include <millrace/runtime/lowering/internal/step_builder.h>
#include <millrace/runtime/program/ops/internal/inference.h>

namespace millrace::lowering {
namespace {

using Ints = std::vector<std::int64_t>;

/// Ops that give zeros for zeros, and no negative ones.
bool keeps_zeros(const Op& op) {
  constexpr std::array<std::string_view, 15> all{"identity", "cast",  "reshape", "squeeze", "unsqueeze",  "flatten", "transpose", "slice",
                                                 "slice_by", "split", "concat",  "relu",    "reshape_to", "tanh",    "abs"};
  if (op.type == "pad")
    return op.attributes.get_or<std::string>("mode", "constant") != "constant" || op.attributes.get_or("value", 0.0) == 0.0;
  return std::find(all.begin(), all.end(), op.type) != all.end();
}

bool is_zeros(const Symbol& symbol) {
  if (!symbol.is(Symbol::Kind::constant) || !is_floating(symbol.value.dtype())) return false;
  const Tensor flat = symbol.value.is_contiguous() ? symbol.value : symbol.value.copy_to(CpuPlace{});
  const auto* bytes = static_cast<const std::byte*>(flat.raw());
  return std::all_of(bytes, bytes + flat.bytes(), [](std::byte byte) { return byte == std::byte{0}; });
}

/// The elements that a slice of one axis leaves out: `start` in front and `behind` at the end.
struct Cut {
  std::int64_t start = 0;
  std::int64_t behind = 0;
  bool first = false;  ///< the first element alone
};

constexpr std::int64_t far_away = std::numeric_limits<std::int32_t>::max();

}  // namespace

/// Ops that change how many rows there are, or whose rows are shifted. False: none of them.
bool StepBuilder::eval_padding(const Op& op, const std::vector<Symbol>& inputs) {
  if (ragged_ || inputs.empty()) return false;
  if (op.type == "concat") return eval_joined_rows(op, inputs);
  const Symbol& x = inputs[0];
  if (!x.is(Kind::step) || x.rows < 0) return false;
  if (op.type == "pad") return eval_pad(op, x);
  return (op.type == "slice" || op.type == "slice_by") && eval_cut(op, x);
}

Symbol StepBuilder::zeros_like(const Symbol& x, int axis, std::int64_t extent) {
  DDim dims = *type_of(x).shape;
  dims[axis] = extent;
  Tensor zeros(type_of(x).dtype, dims);
  std::fill_n(static_cast<std::byte*>(zeros.raw_mutable()), zeros.bytes(), std::byte{0});
  zeros.storage()->mark_written();
  return {.kind = Kind::constant, .value = std::move(zeros)};
}

/// A row before that of the first step.
Symbol StepBuilder::row_before(const Symbol& x) { return x.before && x.left_pad > 0 ? *x.before : zeros_like(x, x.rows, 1); }

Symbol StepBuilder::rows_before(const Symbol& x, std::int64_t count) {
  if (!x.before || x.left_pad <= 0) return zeros_like(x, x.rows, count);
  const std::vector<Symbol> rows(static_cast<std::size_t>(count), *x.before);
  return apply("concat", rows, {{"axis", std::int64_t{x.rows}}}, -1)[0];
}

/// `row` is one of the rows before that of the first step of `made`.
void StepBuilder::take_before(Symbol& made, const Symbol& row) const {
  if (!row.is(Kind::constant) && !row.is(Kind::session)) throw UnsupportedError(made.deviates);
  made.before = is_zeros(row) ? nullptr : std::make_shared<const Symbol>(row);
}

/// The rows of `steps` steps ago, before these the rows before that of the first step.
Symbol StepBuilder::delayed(const Symbol& x, std::int64_t steps) {
  if (steps == 0) return x;
  const int axis = x.rows, phase = x.phase;
  const auto part = [&](const Symbol& from, std::int64_t begin, std::int64_t end) {
    return apply("slice", {from}, {{"starts", Ints{begin}}, {"ends", Ints{end}}, {"axes", Ints{axis}}, {"steps", Ints{1}}}, axis)[0];
  };
  const std::string name = "rows of " + program_of(x).var(x.var).name;
  const std::size_t state = add_state(name, fmt::format("the last {} {}", steps, name), rows_before(x, steps), 0);
  const Symbol all = apply("concat", {state_at(state, phase, -1, x.clock), x}, {{"axis", std::int64_t{axis}}}, axis)[0];
  next_[state][phase] = part(all, 1, steps + 1);
  Symbol made = part(all, 0, 1);
  made.before = x.before;
  made.origin = x.origin;
  return made;
}

/// `x`, and `before` in the first `steps` steps.
Symbol StepBuilder::begun(const Symbol& x, std::int64_t steps, const Symbol& before) {
  DDim ones = *type_of(x).shape;
  for (int axis = 0; axis < ones.rank(); ++axis) ones[axis] = 1;
  const DType dtype = type_of(x).dtype == DType::boolean ? DType::i64 : type_of(x).dtype;  // a mark is a number
  const Symbol shape{.kind = Kind::constant, .value = Tensor::from(Ints(ones.begin(), ones.end()), DDim{ones.rank()})};
  const Symbol filled = apply("constant_of_shape", {shape}, {{"value", Tensor::scalar(1.0F)}}, -1)[0];
  const Symbol one = apply("cast", {filled}, {{"to", dtype}}, -1)[0];
  Symbol mark = one;
  mark = {.kind = Kind::step, .var = var_in(x.phase, one), .phase = x.phase, .clock = x.clock, .rows = x.rows, .origin = "begun"};
  const Symbol known = delayed(mark, steps);
  const Symbol none = apply("sub", {one, one}, {}, -1)[0];
  const Symbol later = apply("greater", {known, none}, {}, x.rows)[0];
  Symbol made = apply("where", {later, x, before}, {}, x.rows)[0];
  made.origin = x.origin;
  return made;
}

/// With zeros before the first row, and rows behind the last one. Rows that are behind the last one already stay the reason: no later op makes up for them.
Symbol StepBuilder::padded(const Symbol& x, std::int64_t before, std::int64_t behind, const std::string& why) {
  Symbol made = x;
  if (before > 0 && x.left_pad > 0 && x.before) throw UnsupportedError(x.deviates);  // rows of two kinds
  if (before > 0) made.before = nullptr;
  if (before > 0 && x.left_pad < 0) {
    made = begun(x, -x.left_pad, zeros_like(x, x.rows, 1));
    made.right_pad = x.right_pad;
    made.deviates = x.deviates;
  }
  made.left_pad = x.left_pad + before;
  made.right_pad += behind;
  if (!why.empty() && x.right_pad == 0) made.deviates = why;
  return made;
}

bool StepBuilder::eval_pad(const Op& op, const Symbol& x) {
  Ints pads = op.attributes.get<Ints>("pads");
  const auto rank = static_cast<std::size_t>(type_of(x).rank()), axis = static_cast<std::size_t>(x.rows);
  const bool zeros =
      op.attributes.get_or<std::string>("mode", "constant") == "constant" && op.attributes.get_or<double>("value", 0.0) == 0.0;
  if (pads.size() != 2 * rank || (pads[axis] == 0 && pads[axis + rank] == 0)) return false;
  const std::int64_t before = pads[axis], behind = pads[axis + rank];
  if (!zeros || x.first || before < 0) return false;
  pads[axis] = pads[axis + rank] = 0;
  Symbol made = x;
  if (std::any_of(pads.begin(), pads.end(), [](std::int64_t pad) { return pad != 0; })) {
    Attributes others = op.attributes;
    others.set("pads", pads);
    made = apply("pad", {x}, others, x.rows)[0];
    made.left_pad = x.left_pad;
    made.right_pad = x.right_pad;
    made.deviates = x.deviates;
    if (x.before && x.left_pad > 0) take_before(made, apply("pad", {*x.before}, others, -1)[0]);
  }
  if (behind < 0) {  // takes rows from the end
    const std::int64_t late = std::max<std::int64_t>(0, -behind - x.right_pad);
    Symbol later = delayed(made, late);
    later.left_pad = x.left_pad - late;
    later.right_pad = std::max<std::int64_t>(0, x.right_pad + behind);
    if (later.right_pad == 0) later.deviates = named(op) + ": takes some of the rows";
    made = std::move(later);
  }
  std::string why = named(op) + fmt::format(": adds {} rows behind the last one", behind);
  if (before > 0)
    why = named(op) +
          (behind > 0
               ? fmt::format(": pads rows before the first one and {} behind the last one, where a causal convolution pads in front alone",
                             behind)
               : std::string(": pads the rows before the first one, and no causal convolution takes them"));
  bind(op.outputs[0], padded(made, before, std::max<std::int64_t>(0, behind), why));
  return true;
}

/// Slices along the rows, of which no step knows the last one.
bool StepBuilder::eval_cut(const Op& op, const Symbol& x) {
  const DDim dims = *type_of(x).shape;
  Ints starts, ends, axes, steps;
  std::vector<bool> whole;  // ends where the sequence ends, and `offset` rows behind
  std::int64_t offset = 0;
  if (op.type == "slice") {
    starts = op.attributes.get<Ints>("starts");
    ends = op.attributes.get<Ints>("ends");
    axes = op.attributes.get_or("axes", Ints{});
    steps = op.attributes.get_or("steps", Ints{});
    whole.assign(starts.size(), false);
  } else {
    Ints* lists[] = {&starts, &ends, &axes, &steps};
    for (std::size_t i = 1; i < op.inputs.size() && i <= 4; ++i) {
      if (op.inputs[i] == no_var) continue;
      const Symbol list = as_list(input(op, i));
      if (!list.is(Kind::constant) && !((list.is(Kind::extents) || list.is(Kind::length)) && i == 2)) return false;
      *lists[i - 1] = ops::integers_of(list.value);
      if (i != 2) continue;
      for (const std::int64_t mark : list.lengths.to_vector<std::int64_t>()) whole.push_back(mark == 1 && !list.is(Kind::constant));
      offset = list.offset;
    }
  }
  if (axes.empty())
    for (std::size_t i = 0; i < starts.size(); ++i) axes.push_back(static_cast<std::int64_t>(i));
  if (steps.empty()) steps.assign(starts.size(), 1);
  if (starts.size() != ends.size() || axes.size() != starts.size() || steps.size() != starts.size()) return false;
  std::optional<Cut> cut;
  Ints others[4];
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::int64_t axis = axes[i] < 0 ? axes[i] + dims.rank() : axes[i];
    if (axis != x.rows) {
      if (whole[i]) return false;
      const std::int64_t entries[] = {starts[i], ends[i], axis, steps[i]};
      for (int k = 0; k < 4; ++k) others[k].push_back(entries[k]);
      continue;
    }
    if (starts[i] < 0 || starts[i] > far_away || steps[i] != 1 || cut) return false;
    cut = Cut{.start = starts[i]};
    // An end before the first row counts from behind: of the shortest sequences, where there are more rows than steps.
    if (whole[i] && offset < 0 && x.left_pad + x.right_pad > 0) return false;
    if (whole[i])
      cut->behind = std::max<std::int64_t>(0, x.left_pad + x.right_pad - offset);
    else if (ends[i] < 0)
      cut->behind = -ends[i];
    else if (ends[i] == 1 && starts[i] == 0 && x.has_row_each_step())
      cut->first = true;
    else if (ends[i] < far_away)
      return false;
    if (cut->behind < 0) return false;
  }
  if (!cut) {
    if (op.type == "slice" || others[0].empty() || std::find(whole.begin(), whole.end(), true) != whole.end()) return false;
    cut = Cut{};
  }
  if ((x.first && (cut->start > 0 || cut->behind > 0))) return false;
  Symbol made = x;
  if (!others[0].empty()) {
    const Attributes slice{{"starts", others[0]}, {"ends", others[1]}, {"axes", others[2]}, {"steps", others[3]}};
    made = apply("slice", {x}, slice, x.rows)[0];
    made.left_pad = x.left_pad;
    made.deviates = x.deviates;
    if (x.before && x.left_pad > 0) take_before(made, apply("slice", {*x.before}, slice, -1)[0]);
  }
  // Rows that are left before the first step become a delay; then rows go that no step knows; further cuts are a delay again.
  const std::int64_t shifted = std::clamp<std::int64_t>(x.left_pad - cut->start, 0, cut->behind);
  const std::int64_t unknown = std::min(x.right_pad, cut->behind - shifted);
  const std::int64_t late = cut->behind - unknown;
  made = delayed(made, late);
  made.first = x.first || cut->first;
  made.left_pad = x.left_pad - cut->start - late;
  made.right_pad = x.right_pad - unknown;
  made.deviates = made.right_pad > 0 || cut->start + cut->behind == 0 ? x.deviates : named(op) + ": takes some of the rows";
  bind(op.outputs[0], std::move(made));
  return true;
}

/// Rows in front of a sequence that lacks so many: zeros, or one row of any kind.
bool StepBuilder::eval_joined_rows(const Op& op, const std::vector<Symbol>& inputs) {
  if (inputs.size() != 2 || !inputs[1].is(Kind::step) || inputs[1].rows < 0 || inputs[1].first) return false;
  const Symbol& before = inputs[0];
  const Symbol& x = inputs[1];
  const auto axis = op.attributes.get<std::int64_t>("axis");
  if ((axis < 0 ? axis + type_of(x).rank() : axis) != x.rows) return false;
  if (before.is(Kind::step) ? !before.first || before.rows != x.rows : !before.is(Kind::constant) && !before.is(Kind::session))
    return false;
  const std::int64_t count = (*type_of(before).shape)[x.rows];
  const std::string why = named(op) + ": puts rows one behind the other";
  if (is_zeros(before)) return bind(op.outputs[0], padded(x, count, 0, why)), true;
  if (count != 1 || x.left_pad != -1) return false;
  Symbol made = begun(x, 1, before);
  made.right_pad = x.right_pad;
  made.deviates = x.deviates;
  bind(op.outputs[0], std::move(made));
  return true;
}

/// Sequences of as many rows, of which some run ahead: these wait for the others.
void StepBuilder::align(std::vector<Symbol>& inputs) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  const Symbol* late = nullptr;
  for (const Symbol& symbol : inputs) {
    if (!symbol.is(Kind::step) || symbol.rows < 0) continue;
    if (symbol.first) return;
    if (symbol.left_pad < least) late = &symbol;
    least = std::min(least, symbol.left_pad);
  }
  for (Symbol& symbol : inputs) {
    if (!symbol.is(Kind::step) || symbol.rows < 0 || symbol.left_pad == least) continue;
    const std::int64_t steps = symbol.left_pad - least;
    if (symbol.left_pad + symbol.right_pad != late->left_pad + late->right_pad) return;
    Symbol waits = delayed(symbol, steps);
    waits.left_pad = least;
    waits.right_pad = symbol.right_pad + steps;
    waits.deviates = late->deviates;
    symbol = std::move(waits);
  }
}

void StepBuilder::expect_row_each_step(const Op&, const Symbol& symbol) const {
  if (!symbol.has_row_each_step()) throw UnsupportedError(symbol.deviates);
}

/// Rows that an op puts side by side belong to one step.
void StepBuilder::expect_same_rows(const Op& op, const std::vector<Symbol>& inputs) const {
  const Symbol* given = nullptr;
  for (const Symbol& symbol : inputs) {
    if (symbol.rows < 0) continue;
    if (given == nullptr) given = &symbol;
    if (symbol.left_pad != given->left_pad || symbol.right_pad != given->right_pad || symbol.first != given->first)
      throw UnsupportedError(symbol.has_row_each_step() ? given->deviates : symbol.deviates);
  }
  if (given == nullptr || given->first || op.type != "concat") return;
  // Nothing is stretched: the whole run takes as many rows of each.
  for (const Symbol& symbol : inputs) {
    if (symbol.rows >= 0) continue;
    if (given->left_pad > 0) throw UnsupportedError(given->deviates);
    refuse(op, fmt::format("puts {}, which has no row for each step, beside rows", symbol.origin.empty() ? "a value" : symbol.origin));
  }
}

/// Whether the results of an op may have other rows than zeros before that of the first step.
bool StepBuilder::changes_rows_before(const Op& op, const std::vector<Symbol>& inputs) const {
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const Symbol& symbol) { return symbol.rows >= 0 && symbol.left_pad > 0 && (symbol.before || !keeps_zeros(op)); });
}

/// The results of the op for a row before that of the first step: all these rows are alike, so one stands for them.
std::vector<Symbol> StepBuilder::made_of_rows_before(const Op& op, const std::vector<Symbol>& inputs) {
  std::vector<Symbol> rows;
  const Symbol* padded = nullptr;
  for (const Symbol& symbol : inputs) {
    rows.push_back(symbol.rows >= 0 ? row_before(symbol) : symbol);
    if (symbol.rows >= 0) padded = &symbol;
  }
  const bool fixed = std::none_of(rows.begin(), rows.end(), [](const Symbol& row) { return row.is(Kind::step); });
  if (!fixed || !program_.registry().at(op.type).pure || op.attributes.get_or("winograd", false)) throw UnsupportedError(padded->deviates);
  return emit(op, rows);
}

}  // namespace millrace::lowering
