// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/ddim.h>

#include <algorithm>

#include <millrace/tensor/checked.h>

namespace millrace {

DDim::DDim(std::initializer_list<std::int64_t> extents) : DDim(std::span<const std::int64_t>(extents.begin(), extents.size())) {}

DDim::DDim(std::span<const std::int64_t> extents) {
  if (extents.size() > max_rank) throw ShapeError("ddim: expected at most 9 axes, found " + std::to_string(extents.size()));
  rank_ = static_cast<int>(extents.size());
  std::copy(extents.begin(), extents.end(), extents_);
}

std::int64_t DDim::elements() const {
  std::int64_t count = 1;
  bool none = false;
  for (const std::int64_t extent : *this) {
    if (extent < 0) throw ShapeError("ddim: expected extents that are known and not negative, found " + to_string());
    if (extent == 0)
      none = true;
    else
      count = checked_mul(count, extent);  // even where another extent is 0: strides are products too
  }
  return none ? 0 : count;
}

DDim DDim::row_major() const {
  DDim strides = *this;
  std::int64_t step = 1;
  for (int axis = rank_ - 1; axis >= 0; --axis) {
    strides.extents_[axis] = step;
    if (axis > 0) step = checked_mul(step, extents_[axis]);
  }
  return strides;
}

DDim DDim::slice(int begin, int end) const {
  if (begin < 0 || begin > end || end > rank_)
    throw IndexError("ddim: axes [" + std::to_string(begin) + ", " + std::to_string(end) + ") of " + to_string());
  return DDim(std::span<const std::int64_t>(extents_ + begin, static_cast<std::size_t>(end - begin)));
}

DDim DDim::inserted(int axis, std::int64_t extent) const {
  if (axis < 0 || axis > rank_) throw IndexError("ddim: cannot insert an axis at " + std::to_string(axis) + " of " + to_string());
  if (rank_ == max_rank) throw ShapeError("ddim: expected at most 9 axes, found one more than " + to_string());
  DDim made = *this;
  std::copy_backward(extents_ + axis, extents_ + rank_, made.extents_ + rank_ + 1);
  made.extents_[axis] = extent;
  ++made.rank_;
  return made;
}

DDim DDim::erased(int axis) const {
  const int at = checked_axis(axis);
  DDim made = *this;
  std::copy(extents_ + at + 1, extents_ + rank_, made.extents_ + at);
  made.extents_[--made.rank_] = 0;
  return made;
}

void DDim::throw_no_axis(int axis) const {
  throw IndexError("axis " + std::to_string(axis) + " is outside a shape of rank " + std::to_string(rank_) + ": " + to_string());
}

std::string DDim::to_string() const {
  std::string text = "[";
  for (int axis = 0; axis < rank_; ++axis) {
    if (axis > 0) text += ", ";
    text += extents_[axis] == unknown ? "?" : std::to_string(extents_[axis]);
  }
  return text + "]";
}

bool operator==(const DDim& a, const DDim& b) noexcept { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

}  // namespace millrace
