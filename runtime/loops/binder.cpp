// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/binder.h>

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include <millrace/kernels/gather.h>
#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/lowering/internal/loop_numbers.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/ragged.h>

namespace millrace {
namespace {

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw UnsupportedError(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace

LoopBinder::LoopBinder(const LoopForm& form, const LoopOperands& operands, StreamRef stream)
    : form_(form), operands_(operands), stream_(stream) {
  if (!operands_.inputs.empty()) order_ = operands_.inputs[0].order();
}

// ---- Inputs ----

std::int64_t LoopBinder::slot_of(std::size_t input, std::int64_t iteration) const {
  const auto [first, stride] = operands_.read[input];
  return first + stride * iteration;
}

void LoopBinder::check_order(std::size_t index) const {
  if (operands_.inputs[index].order() != order_) refuse("'{}' has another order than '{}'", port(index), port(0));
  if (form_.unbatched && order_) refuse("'{}' has an order of sequences", port(index));
}

/// The slots that the loop reads are slots of the array, or stand before the first one.
void LoopBinder::check_reach(std::size_t index) const {
  check_order(index);
  const TensorArray& array = operands_.inputs[index];
  const auto [first, stride] = operands_.read[index];
  const auto last = lowering::value_at(first, stride, operands_.iterations - 1);
  if (!last || array.is_window() || std::max(first, *last) >= array.size()) refuse("'{}' does not have its slots yet", port(index));
  const std::int64_t least = std::min(first, *last);
  const bool boots = index < operands_.boots.size() && operands_.boots[index].has_value();
  if (least < -1 || (least < 0 && !boots)) refuse("'{}' is read before its first slot", port(index));
}

void LoopBinder::check_slot(std::size_t index, DType dtype, const DDim& dims) const {
  VarType wanted = type(index);
  if (form_.unbatched) wanted.shape = wanted.shape->erased(0);
  const DDim& extents = wanted.shape.value();
  bool fits = dtype == wanted.dtype && dims.rank() == extents.rank() && (form_.unbatched || dims.rank() > 0);
  for (int axis = 0; fits && axis < dims.rank(); ++axis) fits = extents[axis] == DDim::unknown || extents[axis] == dims[axis];
  if (!fits) refuse("'{}': expected slots of {}, found {}{}", port(index), wanted.to_string(), name_of(dtype), dims.to_string());
}

Tensor LoopBinder::as_rows(const Tensor& value) const { return form_.unbatched ? value.reshape(value.dims().inserted(0, 1)) : value; }

Tensor LoopBinder::in_place(const Tensor& value) const {
  if (value.place() != stream_.place() || !value.is_contiguous()) return clone(value, stream_);
  return value;
}

LoDTensor LoopBinder::held_slot(std::size_t index, std::int64_t iteration) const {
  const std::int64_t at = slot_of(index, iteration);
  std::optional<LoDTensor> held;
  if (at >= 0)
    held = operands_.inputs[index].peek(at);
  else if (at == -1 && index < operands_.boots.size() && operands_.boots[index])
    held = *operands_.boots[index];
  if (!held) refuse("'{}' does not have its slots yet", port(index));
  if (!held->lod().empty()) refuse("slots of '{}' have sub-sequences", port(index));
  check_slot(index, held->dtype(), held->dims());
  return *held;
}

Tensor LoopBinder::slot(std::size_t index, std::int64_t iteration) const { return as_rows(in_place(held_slot(index, iteration).tensor())); }

/// Rows that stand apart, all behind slot 0.
std::optional<BoundInput> LoopBinder::picked_input(std::size_t index) const {
  const auto filled = operands_.inputs[index].picked();
  if (filled == nullptr || form_.unbatched || std::min(slot_of(index, 0), slot_of(index, operands_.iterations - 1)) < 0)
    return std::nullopt;
  check_slot(index, filled->whole.dtype(), filled->whole.dims());
  BoundInput made;
  made.picked = filled->picked;
  made.begin.reserve(static_cast<std::size_t>(operands_.iterations));
  made.rows.reserve(static_cast<std::size_t>(operands_.iterations));
  for (std::int64_t t = 0; t < operands_.iterations; ++t) {
    const auto at = static_cast<std::size_t>(slot_of(index, t));
    made.begin.push_back(filled->offsets[at]);
    made.rows.push_back(filled->offsets[at + 1] - filled->offsets[at]);
  }
  return made;
}

BoundInput LoopBinder::input(std::size_t index, bool picks) const {
  check_reach(index);
  if (picks)
    if (std::optional<BoundInput> picked = picked_input(index)) return std::move(*picked);
  BoundInput made;
  const auto filled = operands_.inputs[index].filled();
  std::optional<Tensor> whole;
  if (filled != nullptr) whole = form_.unbatched ? filled->stacked() : filled->whole;
  if (!whole) {
    for (std::int64_t t = 0; t < operands_.iterations; ++t) {
      made.slots.push_back(slot(index, t));
      made.rows.push_back(made.slots.back().dim(0));
      if (made.slots.back().dims().erased(0) != made.slots.front().dims().erased(0))
        refuse("slots of '{}' have extents that differ: {} and {}", port(index), made.slots.front().dims().to_string(),
               made.slots.back().dims().to_string());
    }
    return made;
  }
  whole = in_place(*whole);
  const bool items = form_.unbatched || filled->items;
  const DDim dims = items ? whole->dims().erased(0) : whole->dims();
  check_slot(index, whole->dtype(), dims);
  const std::int64_t step = items && !form_.unbatched ? dims[0] : 1;
  made.whole = items && !form_.unbatched ? whole->reshape(dims.erased(0).inserted(0, whole->dim(0) * step)) : *whole;
  made.begin.reserve(static_cast<std::size_t>(operands_.iterations));
  made.rows.reserve(static_cast<std::size_t>(operands_.iterations));
  made.slots.resize(
      static_cast<std::size_t>(slot_of(index, 0) < 0 || slot_of(index, operands_.iterations - 1) < 0 ? operands_.iterations : 0));
  for (std::int64_t t = 0; t < operands_.iterations; ++t) {
    if (slot_of(index, t) < 0) {
      Tensor& boot = made.slots[static_cast<std::size_t>(t)];
      boot = slot(index, t);
      made.begin.push_back(-1);
      made.rows.push_back(boot.dim(0));
      continue;
    }
    const auto at = static_cast<std::size_t>(slot_of(index, t));
    made.begin.push_back(items ? slot_of(index, t) * step : filled->offsets[at]);
    made.rows.push_back(items ? step : filled->offsets[at + 1] - filled->offsets[at]);
  }
  return made;
}

std::vector<std::int64_t> LoopBinder::expected_rows(std::size_t index) const {
  check_reach(index);
  const LoDTensor slot = held_slot(index, 0);
  const std::int64_t first = form_.unbatched ? 1 : slot.dims()[0];
  std::vector<std::int64_t> rows;
  for (std::int64_t t = 0; t < operands_.iterations; ++t) {
    const std::int64_t at = slot_of(index, t);
    rows.push_back(at < 0 && !form_.unbatched ? operands_.boots[index]->dims()[0] : order_ ? order_->live(at) : first);
  }
  return rows;
}

// ---- Rows ----

void LoopBinder::set_rows(const std::vector<std::vector<std::int64_t>>& counts) {
  if (counts.empty()) return;
  // An input that shrinks has the rows of another input, and more behind them.
  const auto leads = std::find_if(form_.inputs.begin(), form_.inputs.end(), [](const auto& input) { return !input.shrinks; });
  const auto leader = static_cast<std::size_t>(leads == form_.inputs.end() ? 0 : leads - form_.inputs.begin());
  rows_ = counts[leader];
  ordered_ = operands_.read[leader];
  if (order_ && ordered_.first < 0) refuse("'{}' is read before the first step of its order", port(leader));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (form_.inputs[i].shrinks && order_ && operands_.iterations > 0)
      for (const std::int64_t iteration : {std::int64_t{0}, operands_.iterations - 1})
        if (slot_of(i, iteration) > slot_of(leader, iteration))
          refuse("slots of '{}' are shrunk to earlier ones, of '{}'", port(i), port(leader));
    if (counts[i] == rows_) continue;
    const bool more = std::equal(rows_.begin(), rows_.end(), counts[i].begin(), std::less_equal<>());
    if (!form_.inputs[i].shrinks || !more || !order_ || !order_->sorted() || operands_.read[i].stride != ordered_.stride ||
        ordered_.stride < 0)
      refuse("slots of '{}' have other rows than those of '{}'", port(i), port(leader));
  }
  ragged_ = std::any_of(rows_.begin(), rows_.end(), [&](std::int64_t count) { return count != rows_.front(); });
  if (!ragged_) return;
  if (!order_) refuse("iterations differ in their rows, and no order says which rows stay");
  if (form_.states.empty()) return;
  if (!std::is_sorted(rows_.rbegin(), rows_.rend())) refuse("iterations have more rows than those before");
  if (ordered_.stride != 1) refuse("iterations have fewer and fewer rows, and no order says which");
}

// ---- States ----

Tensor LoopBinder::state(std::size_t index) const {
  const SlotValue& value = operands_.states[index];
  const std::size_t at = operands_.inputs.size() + index;
  if (!value.lod().empty()) refuse("state '{}' has sub-sequences", port(at));
  if (form_.unbatched && value.has_order()) refuse("state '{}' has an order of sequences", port(at));
  check_slot(at, value.dtype(), value.dims());
  Tensor held = as_rows(in_place(value.tensor()));
  if (!order_) return held;
  if (!form_.states[index].shrinks) {
    if (ragged_) refuse("state '{}' keeps its rows where sequences end", port(at));
    return held;
  }
  if (!form_.states[index].changes && !value.has_order() && operands_.iterations > 1)
    refuse("state '{}' has no order, and each iteration takes it as it stands", port(at));
  return of_batch(value, std::move(held), port(at));
}

Tensor LoopBinder::of_batch(const SlotValue& value, Tensor rows, const std::string& name) const {
  if (value.has_order() && value.order() != *order_) refuse("state '{}' is of another order", name);
  // A computed state has the rows of the iteration before, or stands in the caller's order.
  const bool given = !value.has_order() && ordered_.first <= 0;
  if (given && rows.dim(0) != order_->sequences())
    refuse("state '{}' has {} rows for {} sequences", name, rows.dim(0), order_->sequences());
  if (given) rows = reorder(LoDTensor(std::move(rows)), *order_, stream_).tensor();
  const std::int64_t before = given ? -1 : value.has_order() ? value.iteration() : ordered_.first - 1;
  if (before > ordered_.first || rows.dim(0) != order_->live(before))
    refuse("state '{}' has {} rows, which are not those of the iteration before", name, rows.dim(0));
  if (ordered_.stride < 0 && rows_.front() != order_->sequences()) refuse("state '{}' begins where sequences have ended", name);
  const RowSelection first = shrink_rows(*order_, before, ordered_.first);
  if (first.count() != rows_.front()) refuse("state '{}' has rows of other sequences than the first iteration", name);
  return first.prefix ? rows.rows(0, rows_.front()) : gather_rows(rows, first.rows, stream_);
}

// ---- Outputs ----

void LoopBinder::check_outputs(std::int64_t rows) const {
  const auto rows_of = [&](std::int64_t t) { return rows_.empty() ? rows : rows_[static_cast<std::size_t>(t)]; };
  for (std::size_t i = 0; i < operands_.outputs.size(); ++i) {
    const TensorArray& array = operands_.outputs[i];
    const auto [first, stride] = operands_.written[i];
    const auto last = lowering::value_at(first, stride, operands_.iterations - 1);
    if (!last || array.is_window() || array.closed() || std::min(first, *last) < 0 || (stride == 0 && operands_.iterations > 1) ||
        (array.is_fixed() && std::max(first, *last) >= array.size()))
      refuse("'{}' has no room for the slots that the loop writes", array.name());
    const bool untouched = array.untouched();
    for (std::int64_t t = 0; t < operands_.iterations && !(untouched && !array.order()); ++t) {
      const SlotState slot = untouched ? SlotState::empty : array.state(first + stride * t);
      if (slot != SlotState::empty && slot != SlotState::waited) refuse("'{}' was written before", array.name());
      if (array.order() && array.order()->live(first + stride * t) != rows_of(t)) refuse("'{}' has an order of other rows", array.name());
    }
  }
}

}  // namespace millrace
