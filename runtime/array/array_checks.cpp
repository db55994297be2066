// SPDX-License-Identifier: Apache-2.0
// The descriptions and the refusals of a TensorArray.
#include <millrace/runtime/array/array_core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <millrace/runtime/array/errors.h>

namespace millrace::detail {

std::string ArrayCore::name() const {
  const std::lock_guard lock(mutex_);
  return name_;
}

void ArrayCore::rename(std::string name) {
  const std::lock_guard lock(mutex_);
  name_ = std::move(name);
}

std::string ArrayCore::text() const {
  switch (kind_) {
    case Kind::fixed: return "array '" + name_ + "' of " + std::to_string(limit_) + " slots";
    case Kind::growable: return "growable array '" + name_ + "' of " + std::to_string(size_) + " slots so far";
    case Kind::window: break;
  }
  return "window '" + name_ + "' (capacity " + std::to_string(limit_) + ", slots from " + std::to_string(base_) + ")";
}

std::string ArrayCore::slot_text(std::int64_t index) const { return "slot " + std::to_string(index) + " of " + text(); }

std::string ArrayCore::to_string() const {
  const std::lock_guard lock(mutex_);
  return text();
}

void ArrayCore::check_index(std::int64_t index) const {
  // The number of slots up to `index`, itself included, is a 64-bit number, too.
  const std::int64_t end = kind_ == Kind::fixed ? limit_ : std::numeric_limits<std::int64_t>::max();
  if (index >= 0 && index < end) return;
  const bool from_zero = kind_ != Kind::fixed && index < 0;
  const std::string range = from_zero ? "expected an index from 0 on" : "expected an index from 0 to " + std::to_string(end - 1);
  throw IndexError(text() + ": " + range + ", found " + std::to_string(index) +
                   (index < 0              ? ": slots count from 0, and append takes the next one"
                    : kind_ == Kind::fixed ? ": make it larger, or growable"
                                           : ""));
}

void ArrayCore::check_read(std::int64_t index) const {
  const std::lock_guard lock(mutex_);
  if (index == -1)
    throw IndexError(text() +
                     ": slot -1 is what stands before the first: read(-1, boot, stream) gives a boot, read(-1) alone has nothing to give");
  check_index(index);
  if (index < base_)
    throw WindowError(slot_text(index) + " has left the window: its " + std::to_string(readers_) +
                      " readings are done; read it once and keep the value");
}

void ArrayCore::check_write(std::int64_t index, const LoDTensor& value) const {
  check_index(index);
  if (closed_) throw ClosedError(slot_text(index) + ": a write after close; close the array when the last slot is written");
  if (failed_) std::rethrow_exception(failed_);
  if (!orphaned_by_.empty())
    throw ClosedError(slot_text(index) + ": a write after its last writer " + orphaned_by_ +
                      " was gone; register a writer before the last one goes");
  const bool written = is_written(index);
  bool parked = false;
  for (const ArrayWaiter* other = parked_; other != nullptr; other = other->next_) parked = parked || other->index == index;
  if (!written && !parked && index >= base_) return;
  const std::string first = index < base_                             ? "a value that has left"
                            : is_of_fill(index)                       ? filled_->slot(index).to_string()
                            : parked || slots_.at(index).readings > 0 ? "a value"
                                                                      : slots_.at(index).value.to_string();
  throw WrittenTwiceError(slot_text(index) + ": already written with " + first + ", found a second write of " + value.to_string() +
                          ": a slot is written once; write another slot, or carry the value in a variable");
}

void ArrayCore::check_value(std::int64_t index, const LoDTensor& value) const {
  value.tensor().check_written();
  const DDim& dims = value.dims();
  if (dtype_ && *dtype_ != value.dtype())
    throw DTypeError(slot_text(index) + ": expected " + std::string(name_of(*dtype_)) + " as in the array, found " +
                     std::string(name_of(value.dtype())) + ": cast it before it is written");
  if (dims_) {
    bool fits = dims_->rank() == dims.rank();
    for (int axis = 0; fits && axis < dims.rank(); ++axis) fits = (*dims_)[axis] == DDim::unknown || (*dims_)[axis] == dims[axis];
    if (!fits) throw ShapeError(slot_text(index) + ": expected " + dims_->to_string() + " as in the array, found " + dims.to_string());
  }
  check_rows(index, value);
}

/// Takes the dtype and the extents of the first slot that is written, which all others have.
void ArrayCore::take_type(DType dtype, const DDim& dims) {
  dtype_ = dtype;
  if (dims_) return;
  dims_ = dims;
  if (dims.rank() > 0) (*dims_)[0] = DDim::unknown;  // a ragged batch: steps differ in rows
}

void ArrayCore::check_fill(const FilledSlots& slots) const {
  if (kind_ != Kind::fixed) throw ArgumentError(text() + ": only a fixed array is filled at once");
  if (filled_ != nullptr && limit_ > 0) check_write(0, LoDTensor(slots.whole));
  if (slots.offsets.empty() || std::cmp_not_equal(slots.offsets.size() - 1, limit_) || slots.whole.rank() == 0 ||
      slots.offsets.back() != slots.whole.dim(0))
    throw ShapeError(text() + ": expected rows for each slot, found " + slots.whole.to_string());
  for (std::int64_t index = 0; index < limit_; ++index) {
    const auto at = static_cast<std::size_t>(index);
    const bool fits = !order_ || order_->live(index) == slots.offsets[at + 1] - slots.offsets[at];
    // The slots differ in rows alone: one of them stands for all.
    if (index > 0 && fits && !is_written(index)) continue;
    const LoDTensor value(slots.slot(index));
    check_write(index, value);
    check_value(index, value);
  }
}

/// The slots from `issued_` up to `slots` are written by this.
void ArrayCore::check_issue(std::int64_t slots) const {
  const std::int64_t least = std::max<std::int64_t>(issued_, std::min<std::int64_t>(limit_, 1));
  if (slots < least || slots > limit_)
    throw ArgumentError(text() + ": expected " + std::to_string(least) + " slots or more to be issued, and no more than it has, found " +
                        std::to_string(slots));
  for (auto at = slots_.lower_bound(issued_); at != slots_.end() && at->first < slots; ++at)
    if (at->second.written) check_write(at->first, at->second.value);
}

void ArrayCore::check_rows(std::int64_t index, const LoDTensor& value) const {
  if (!order_) return;
  const std::int64_t live = order_->live(index);
  const bool levels = !value.lod().empty();
  const std::int64_t found = levels ? value.lod().sequences(0) : value.dims().rank() == 0 ? 0 : value.rows();
  if (found == live) return;
  throw ShapeError(slot_text(index) + ": expected " + std::to_string(live) + (levels ? " sequences" : " rows") +
                   ", as many as live at iteration " + std::to_string(index) + " of its order, found " + value.to_string() +
                   ": shrink the state to the step's rows first");
}

}  // namespace millrace::detail
