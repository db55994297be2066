// SPDX-License-Identifier: Apache-2.0
// Shapes that a graph computes from the number of its rows: a step has one row where the sequence has all of them.
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include <millrace/runtime/lowering/internal/step_builder.h>
#include <millrace/runtime/program/ops/internal/inference.h>

namespace millrace::lowering {
namespace {

using Ints = std::vector<std::int64_t>;

/// Ops that pick from lists, join them or copy them.
bool moves_elements(const std::string& type) {
  constexpr std::array<std::string_view, 11> all{"identity", "cast",     "reshape", "squeeze", "unsqueeze", "gather",
                                                 "slice",    "slice_by", "split",   "concat",  "where"};
  return std::find(all.begin(), all.end(), type) != all.end();
}

Tensor list_of(const Ints& values) { return Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())}); }

/// Where the list has the length of the sequence; none: nowhere, or more than once.
std::optional<int> place_of_length(const Symbol& list) {
  const Ints marks = list.lengths.to_vector<std::int64_t>();
  if (std::count(marks.begin(), marks.end(), 1) != 1) return std::nullopt;
  return static_cast<int>(std::find(marks.begin(), marks.end(), 1) - marks.begin());
}

std::int64_t product(const Ints& extents, int begin, int end) {
  std::int64_t all = 1;
  for (int axis = begin; axis < end; ++axis) all *= extents[static_cast<std::size_t>(axis)];
  return all;
}

}  // namespace

/// Ops on lists of extents, as far as they say what a step does. False: not of that kind.
bool StepBuilder::eval_extents(const Op& op) {
  if (ragged_) return false;  // the rows of a batch are those of several sequences
  if (op.type == "shape") return eval_shape(op);
  if (op.type == "range") return eval_range(op);
  if (op.type == "reshape" && eval_reshape(op)) return true;
  if (op.type == "equal") return eval_equal(op);
  if (moves_elements(op.type)) return eval_list(op);
  const bool shaped = op.type == "expand" || op.type == "reshape_to";
  Symbol list = input(op, shaped ? 1 : 0);
  // The program may not know a list that the extents of a step say.
  const bool known = shaped && list.is(Kind::constant) && program_.constant(op.inputs[1]) == nullptr && input(op, 0).rows >= 0;
  if (known) list = as_list(list);
  if ((!list.is(Kind::extents) && !known) || input(op, 0).is(Kind::final)) return false;
  if (shaped && !input(op, 0).is(Kind::constant) && !input(op, 0).is(Kind::session) && !input(op, 0).is(Kind::step)) return false;
  if (op.type == "reshape_to") return eval_reshape_to(op, list), true;
  if (list.offset != 0) return false;  // more rows than steps, or fewer
  if (op.type == "expand") return eval_expand(op, list), true;
  const std::optional<int> place = op.type == "constant_of_shape" ? place_of_length(list) : std::nullopt;
  if (!place) return false;
  const Symbol step{.kind = Kind::constant, .value = list.value};
  bind(op.outputs[0], as_rows(emit(op, {step})[0], *place));
  return true;
}

bool StepBuilder::eval_shape(const Op& op) {
  const Symbol x = input(op, 0);
  if (!x.is(Kind::step) || x.rows < 0) return false;
  const DDim dims = *type_of(x).shape;
  const auto bound = [&](const char* name, std::int64_t otherwise) {
    const auto at = op.attributes.get_or<std::int64_t>(name, otherwise);
    return std::clamp<std::int64_t>(at < 0 ? at + dims.rank() : at, 0, dims.rank());
  };
  const std::int64_t begin = bound("start", 0), end = bound("end", dims.rank());
  Ints extents, marks;
  for (std::int64_t axis = begin; axis < end; ++axis) {
    extents.push_back(dims[static_cast<int>(axis)]);
    marks.push_back(axis == x.rows ? 1 : 0);
  }
  const bool of_rows = x.rows >= begin && x.rows < end && !x.first;
  if (!of_rows && !type_of(x).is_static()) return false;
  if (!of_rows) return bind(op.outputs[0], Symbol{.kind = Kind::constant, .value = list_of(extents)}), true;
  bind(op.outputs[0], Symbol{.kind = Kind::extents,
                             .value = list_of(extents),
                             .lengths = list_of(marks),
                             .offset = x.left_pad + x.right_pad,
                             .level = x.clock - 1,
                             .origin = "the length of the sequence"});
  return true;
}

/// A constant, or the length of the sequence, as a list of extents.
Symbol StepBuilder::as_list(const Symbol& symbol) const {
  Symbol list = symbol;
  if (symbol.is(Kind::length)) list.value = list.lengths = list_of({1});
  if (symbol.is(Kind::constant)) {
    Tensor none(DType::i64, symbol.value.dims());
    std::fill_n(static_cast<std::byte*>(none.raw_mutable()), none.bytes(), std::byte{0});
    none.storage()->mark_written();
    list.lengths = none;
  }
  return list;
}

/// The op goes over the extents of a step, and over the marks of the length in the same way.
bool StepBuilder::eval_list(const Op& op) {
  const auto is_data = [&op](std::size_t i) { return op.type == "concat" || (op.type == "where" ? i > 0 : i == 0); };
  const auto of_length = [](const Symbol& s) { return s.is(Kind::extents) || s.is(Kind::length); };
  bool any = false;
  Symbol found;
  std::optional<std::int64_t> offset;
  std::vector<Tensor> values, marks;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const Symbol given = input(op, i);
    if (is_data(i) && (given.is(Kind::extents) || (op.inputs.size() > 1 && op.type != "gather" && of_length(given))))
      any = true, found = given;
    if (op.inputs[i] != no_var && !given.is(Kind::constant) && !(is_data(i) && of_length(given))) return false;
    if (of_length(given) && std::exchange(offset, given.offset).value_or(given.offset) != given.offset) return false;
    const Symbol list = as_list(given);
    const bool narrow = given.is(Kind::length) && program_.var(op.inputs[i]).type.dtype == DType::i32;
    values.push_back(narrow ? Tensor::from<std::int32_t>({1}) : list.value);
    marks.push_back(is_data(i) ? list.lengths : list.value);
  }
  if (!any) return false;
  const auto run = [&](const std::vector<Tensor>& lists) {
    std::vector<const Tensor*> inputs;
    for (std::size_t i = 0; i < lists.size(); ++i) inputs.push_back(op.inputs[i] == no_var ? nullptr : &lists[i]);
    return fold(op, inputs);
  };
  // Marks are numbers of places, whatever type the list is cast to.
  const std::vector<Tensor> made = run(values), places = op.type == "cast" ? marks : run(marks);
  for (std::size_t i = 0; i < made.size(); ++i) {
    const Ints where = places[i].to_vector<std::int64_t>();
    Symbol symbol = found;
    symbol.kind = made[i].rank() == 0 ? Kind::length : Kind::extents;
    symbol.value = made[i];
    symbol.lengths = places[i];
    if (std::count(where.begin(), where.end(), 0) == std::ssize(where)) symbol = {.kind = Kind::constant, .value = made[i]};
    bind(op.outputs[i], std::move(symbol));
  }
  return true;
}

/// Exporters compare extents with −1, which stands for one that stays. No length is such a number.
bool StepBuilder::eval_equal(const Op& op) {
  Symbol list = input(op, 0), numbers = input(op, 1);
  if (!list.is(Kind::extents)) std::swap(list, numbers);
  if (!list.is(Kind::extents) || !numbers.is(Kind::constant) || is_floating(numbers.value.dtype())) return false;
  const Ints all = ops::integers_of(numbers.value);
  if (list.offset < 0 || !std::all_of(all.begin(), all.end(), [](std::int64_t number) { return number <= 0; })) return false;
  const Tensor made = fold(op, {&list.value, &numbers.value})[0];
  bind(op.outputs[0], Symbol{.kind = Kind::constant, .value = made});
  return true;
}

/// The numbers of all steps, from any first one: a step has its own.
bool StepBuilder::eval_range(const Op& op) {
  const Symbol first = input(op, 0), limit = input(op, 1), stride = input(op, 2);
  if (!first.is(Kind::constant) || !stride.is(Kind::constant) || !limit.is(Kind::length)) return false;
  if (first.value.elements() != 1 || stride.value.elements() != 1 || stride.value.item() != 1) return false;
  if (first.value.item() != static_cast<double>(limit.offset)) return false;
  Symbol number =
      apply("unsqueeze", {counter_value({.kind = Kind::counter, .offset = limit.offset, .level = limit.level})}, {{"axes", Ints{0}}}, 0)[0];
  const DType dtype = program_.var(op.outputs[0]).type.dtype;
  if (dtype != DType::i64) number = apply("cast", {number}, {{"to", dtype}}, 0)[0];
  bind(op.outputs[0], std::move(number));
  return true;
}

/// A value that is the same in all steps, as the rows along `axis`.
Symbol StepBuilder::as_rows(const Symbol& value, int axis) {
  Symbol rows = value;
  if (!value.is(Kind::step))
    rows = {.kind = Kind::step, .var = var_in(depth_, value), .phase = depth_, .clock = depth_, .origin = value.origin};
  rows.rows = axis;
  return rows;
}

void StepBuilder::eval_expand(const Op& op, const Symbol& list) {
  const Symbol x = input(op, 0);
  expect_row_each_step(op, x);
  const int rank = std::max(type_of(x).rank(), static_cast<int>(list.value.elements()));
  const std::optional<int> place = place_of_length(list);
  const int rows = x.rows < 0 ? -1 : x.rows + rank - type_of(x).rank();
  if (!place && !list.is(Kind::constant))
    refuse(op, "stretches more than one axis to the length of the sequence, which is known only at its end");
  const int axis = place ? *place + rank - static_cast<int>(list.value.elements()) : rows;
  const int own = axis - rank + type_of(x).rank();
  const bool stretched = x.rows < 0 && (own < 0 || (*type_of(x).shape)[own] == 1);
  if (rows != axis && !stretched) refuse(op, "stretches another axis than that of the rows to the length of the sequence");
  bind(op.outputs[0], as_rows(apply("expand", {x, {.kind = Kind::constant, .value = list.value}}, {}, axis)[0], axis));
}

/// `x` with these extents, where `marks` has 1 at the one that is the length of the sequence. False: elements of several rows meet.
bool StepBuilder::reshape_rows(const Op& op, const Symbol& x, std::vector<std::int64_t> extents, std::vector<std::int64_t> marks) {
  const DDim dims = *type_of(x).shape;
  const Ints from(dims.begin(), dims.end());
  const auto count = static_cast<int>(extents.size());
  for (std::size_t i = 0; i < extents.size() && !op.attributes.get_or("allowzero", false); ++i) {
    if (extents[i] != 0) continue;
    if (i >= from.size()) return false;
    extents[i] = from[i];
    if (std::cmp_equal(i, x.rows)) marks[i] = 1;
  }
  if (const auto open = std::find(extents.begin(), extents.end(), -1); open != extents.end()) {
    const std::int64_t others = -product(extents, 0, count);
    if (others <= 0 || dims.elements() % others != 0) return false;
    *open = dims.elements() / others;
    // As many as there are: the rows, where nothing else is.
    if (std::count(marks.begin(), marks.end(), 1) == 0) marks[static_cast<std::size_t>(open - extents.begin())] = 1;
  }
  const auto axis = static_cast<int>(std::find(marks.begin(), marks.end(), 1) - marks.begin());
  if (std::count(marks.begin(), marks.end(), 1) != 1 || extents[static_cast<std::size_t>(axis)] != 1 ||
      product(extents, 0, count) != dims.elements() || product(extents, 0, axis) != product(from, 0, x.rows))
    return false;
  Symbol made = apply("reshape", {x}, {{"shape", extents}}, axis)[0];
  made.left_pad = x.left_pad;
  made.right_pad = x.right_pad;
  made.first = x.first;
  made.deviates = x.deviates;
  if (x.before && x.left_pad > 0) take_before(made, apply("reshape", {*x.before}, {{"shape", extents}}, -1)[0]);
  bind(op.outputs[0], std::move(made));
  return true;
}

void StepBuilder::eval_reshape_to(const Op& op, const Symbol& list) {
  const Symbol x = input(op, 0);
  // A list of numbers alone has the rows at the place of -1 or 0, as that of a reshape.
  const bool same = !list.is(Kind::extents) || (x.left_pad + x.right_pad == list.offset && !x.first);
  if (!same) expect_row_each_step(op, x);
  if (x.rows < 0) refuse(op, "puts the elements of something that has no rows into as many as the sequence has");
  if (!same) refuse(op, "puts rows into more or fewer rows than there are");
  if (!reshape_rows(op, x, ops::integers_of(list.value), list.lengths.to_vector<std::int64_t>()))
    refuse(op, "moves elements from row to row");
}

/// The extents of a step are known where those of the whole program are not.
bool StepBuilder::eval_reshape(const Op& op) {
  const Symbol x = input(op, 0);
  if (!x.is(Kind::step) || x.rows < 0) return false;
  const Ints extents = op.attributes.get<Ints>("shape");
  return reshape_rows(op, x, extents, Ints(extents.size(), 0));
}

}  // namespace millrace::lowering
