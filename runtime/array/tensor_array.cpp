// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/tensor_array.h>

#include <numeric>
#include <string>

#include <millrace/runtime/array/join.h>
#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/pool.h>

namespace millrace {
using detail::ArrayCore;

namespace {

/// A tensor without elements takes no memory, however many slots it would give; the table of the slots does.
void check_slots(const char* what, const Tensor& x, std::int64_t slots) {
  constexpr std::int64_t most_slots = std::int64_t{1} << 24;
  if (x.elements() == 0 && slots > most_slots)
    throw ArgumentError(std::string(what) + ": expected at most " + std::to_string(most_slots) + " slots without elements, found " +
                        x.to_string());
}

}  // namespace

TensorArray TensorArray::make(ArrayCore::Kind kind, std::int64_t size, std::optional<SequenceOrder> order) {
  if (size < 0)
    throw ArgumentError(std::string(kind == ArrayCore::Kind::window ? "window: expected a capacity" : "array: expected a size") +
                        " of at least 0, found " + std::to_string(size));
  return TensorArray(make_pooled<ArrayCore>(kind, size, std::move(order)));
}

TensorArray::TensorArray(SlotIndex size, SequenceOrder order) : TensorArray(make(ArrayCore::Kind::fixed, size.value(), order)) {
  if (size.value() != order.steps())
    throw ArgumentError("array: expected a size of " + std::to_string(order.steps()) + ", the steps of " + order.to_string() + ", found " +
                        std::to_string(size.value()));
}

TensorArray::TensorArray(const LoDTensor& x) : TensorArray(unstack(x.tensor())) {
  if (!x.lod().empty())
    throw LoDError("array: expected a tensor without levels, found " + x.to_string() +
                   ": unpack gives the steps of its sequences, TensorArray::peel the sequences, unstack(x.tensor()) the rows");
}

TensorArray TensorArray::growable() { return make(ArrayCore::Kind::growable, 0, std::nullopt); }

TensorArray TensorArray::window(std::int64_t capacity, int readers) {
  TensorArray made = make(ArrayCore::Kind::window, capacity, std::nullopt);
  made.core().set_readers(readers);
  return made;
}

void TensorArray::fill_picked(detail::PickedRows rows, std::vector<std::int64_t> offsets) const {
  const Tensor& from = rows.from;
  if (from.rank() == 0 || !from.place().is_cpu() || !from.is_contiguous() || !from.ready().reached())
    throw ArgumentError(to_string() + ": expected contiguous rows on the host to pick from, found " + from.to_string());
  for (const std::int64_t row : rows.rows)
    if (row < 0 || row >= from.dim(0))
      throw ArgumentError(to_string() + ": expected rows of " + from.to_string() + ", found row " + std::to_string(row));
  DDim dims = from.dims(), strides = dims;
  dims[0] = static_cast<std::int64_t>(rows.rows.size());
  for (int axis = 0; axis < strides.rank(); ++axis) strides[axis] = 0;
  Tensor extents(from.dtype(), dims, strides, 0, std::make_shared<Allocation>(host_memory(), size_of(from.dtype())));
  extents.storage()->mark_written();
  core().fill({std::move(extents), std::move(offsets), false, nullptr, std::make_shared<const detail::PickedRows>(std::move(rows))},
              core().capacity());
}

void TensorArray::fill_items(Tensor items) const {
  check_slots("fill_items", items, items.dim(0));
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(items.dim(0)) + 1);
  std::iota(offsets.begin(), offsets.end(), std::int64_t{0});
  core().fill({std::move(items), std::move(offsets), true, nullptr}, core().capacity());
}

TensorArray TensorArray::unstack(const Tensor& x, int axis) {
  if (x.rank() == 0) throw ShapeError("unstack: expected a tensor with at least one axis, found the scalar " + x.to_string());
  const std::int64_t count = x.dim(axis);
  check_slots("unstack", x, count);
  TensorArray made(count);
  made.core().expect(x.dtype(), x.dims().erased(x.dims().checked_axis(axis)), 0);
  if (x.dims().checked_axis(axis) == 0) {
    made.fill_items(x);
    return made;
  }
  for (std::int64_t i = 0; i < count; ++i) made.write(i, x.select(axis, i));
  return made;
}

TensorArray TensorArray::split(const Tensor& x, const std::vector<std::int64_t>& lengths) {
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) {
    if (length < 0) throw ShapeError("split: expected lengths from 0 on, found " + std::to_string(length));
    sum = checked_add(sum, length);
  }
  if (x.rank() == 0 || x.dim(0) != sum)
    throw ShapeError("split: expected lengths that sum to the rows of " + x.to_string() + ", found a sum of " + std::to_string(sum));
  TensorArray made(lengths.size());
  std::int64_t at = 0;
  for (std::size_t i = 0; i < lengths.size(); at += lengths[i++]) made.write(i, x.rows(at, at + lengths[i]));
  return made;
}

TensorArray TensorArray::peel(const LoDTensor& x) {
  const std::vector<LoDTensor> parts = x.peel();
  TensorArray made(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) made.write(i, parts[i]);
  return made;
}

TensorArray TensorArray::named(std::string name) const {
  core().rename(std::move(name));
  return *this;
}

TensorArray TensorArray::of(DType dtype, const DDim& dims, int levels) const {
  core().expect(dtype, dims, levels);
  return *this;
}

SlotRead TensorArray::read(SlotIndex index, const LoDTensor& boot, StreamRef stream) const {
  if (index.value() != -1) return SlotRead(core_, index.value());
  if (!core().order()) return SlotRead(core_, SlotValue(boot));
  return SlotRead(core_, reorder(boot, *core().order(), stream));
}

SlotWrite TensorArray::write(SlotIndex index, LoDTensor value, Mode mode) const {
  if (mode == copy) throw ArgumentError(to_string() + ": to copy takes a stream: write(index, value, TensorArray::copy, stream)");
  return SlotWrite(core_, index.value(), std::move(value), nullptr);
}

SlotWrite TensorArray::write(SlotIndex index, LoDTensor value, Mode mode, StreamRef stream) const {
  if (mode == share) return write(index, std::move(value), mode);
  const Tensor kept = prepare(index, value.dtype(), value.dims(), stream);
  millrace::copy(value.tensor(), kept, stream);
  return SlotWrite(core_, index.value(), LoDTensor(kept, value.lod()), nullptr);
}

Point TensorArray::watermark(std::int64_t slots) const {
  std::shared_ptr<Timeline> timeline = core().watermark();
  if (slots < 0 || (is_fixed() && slots > size())) {
    // The timeline itself counts on for the slots that there are, and may be the one of a kernel.
    timeline = std::make_shared<Timeline>();
    timeline->fail(std::make_exception_ptr(IndexError(to_string() + ": expected a watermark of the slots " +
                                                      (is_fixed() ? "that it has" : "from 0 on") + ", found one of " +
                                                      std::to_string(slots) + " slots")));
  }
  return Point(std::move(timeline), static_cast<std::uint64_t>(slots));
}

void TensorArray::cancel() const { core().fail(std::make_exception_ptr(CancelledError(to_string() + " was cancelled")), true); }

void TensorArray::scatter(const std::vector<std::int64_t>& indices, const Tensor& x) const {
  if (x.rank() == 0 || x.dim(0) != static_cast<std::int64_t>(indices.size()))
    throw ShapeError(to_string() + ": scatter to " + std::to_string(indices.size()) + " slots, found " + x.to_string());
  core().scatter(indices, x);
}

task<std::vector<SlotValue>> TensorArray::values_of(TensorArray array) {
  if (array.is_window()) throw UnsupportedError(array.to_string() + ": a window has no whole: its slots leave as they are read");
  std::vector<SlotValue> values;
  for (std::int64_t i = 0;; ++i) {
    const bool more = co_await array.has(i);
    if (!more) break;
    SlotValue value = co_await array.read(i);
    values.push_back(std::move(value));
  }
  co_return values;
}

task<std::shared_ptr<const detail::FilledSlots>> TensorArray::filled_of(TensorArray array) {
  if (array.is_fixed() && array.size() > 0) {
    co_await array.read(0);
    if (array.filling()) co_await array.read(array.size() - 1);
  }
  co_return array.filled();
}

namespace {

void check_stack(const TensorArray& array, const char* what, const std::vector<SlotValue>& values) {
  const auto slot = [](const SlotValue& one) { return " in slot " + std::to_string(one.iteration()); };
  for (const SlotValue& value : values) {
    if (!value.lod().empty())
      throw LoDError(array.to_string() + ": " + what + " needs slots without levels, found " + value.lod().brief() + slot(value) +
                     ": concat keeps them");
    if (value.dims() != values[0].dims())
      throw ShapeError(array.to_string() + ": " + what + " needs slots of one shape, found " + values[0].dims().to_string() +
                       slot(values[0]) + " and " + value.dims().to_string() + slot(value) + ": concat joins rows");
  }
}

}  // namespace

task<Tensor> TensorArray::stack_of(TensorArray array, StreamRef stream) {
  const auto filled = co_await array.once_filled();
  if (const std::optional<Tensor> stacked = filled == nullptr ? std::nullopt : filled->stacked()) co_return *stacked;
  std::vector<SlotValue> values = co_await array.values();
  check_stack(array, "stack", values);
  if (values.empty() && !array.core().knows_slots())
    throw ShapeError(array.to_string() + ": stack expected at least one slot, or a dtype and shape given by `of`; found neither");
  co_return detail::stack_values(values, array.core().slab(), array.core().empty_like(), stream);
}

task<LoDTensor> TensorArray::concat_of(TensorArray array, StreamRef stream) {
  const auto filled = co_await array.once_filled();
  if (filled != nullptr && !filled->items) co_return LoDTensor(filled->whole);
  std::vector<SlotValue> values = co_await array.values();
  co_return detail::concat_values(values, array.core().slab(), array.core().empty_like(), array.core().slot_levels().value_or(0), stream);
}

task<Tensor> TensorArray::gather_of(TensorArray array, std::vector<std::int64_t> indices, StreamRef stream) {
  std::vector<SlotValue> values;
  for (const std::int64_t index : indices) {
    SlotValue value = co_await array.read(index);
    values.push_back(std::move(value));
  }
  check_stack(array, "gather", values);
  co_return detail::stack_values(values, nullptr, array.core().empty_like(), stream);
}

}  // namespace millrace
