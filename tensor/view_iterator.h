// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include <millrace/tensor/dim.h>

namespace millrace {

/// Goes over the elements of a view in row-major order, whatever the strides. Bidirectional; iterators of the same view compare. Stepping
/// outside [begin, end] or looking at the end is undefined, as with any iterator.
template <class View>
class ViewIterator {
 public:
  using iterator_category = std::bidirectional_iterator_tag;
  using value_type = std::remove_cv_t<typename View::value_type>;
  using difference_type = std::ptrdiff_t;
  using reference = typename View::value_type&;
  using pointer = typename View::value_type*;

  ViewIterator() = default;
  /// At the `position`-th element; the number of elements is the end.
  ViewIterator(const View& view, std::int64_t position)
      : ptr_(view.ptr()), size_(view.size()), stride_(view.stride()), position_(position) {
    if (position == 0) return;
    // The end is one past the last index of axis 0, where ++ arrives and -- departs.
    for (int axis = rank - 1; axis > 0; --axis) {
      if (size_[axis] == 0) return;
      index_[axis] = position % size_[axis];
      position /= size_[axis];
    }
    index_[0] = position;
    offset_ = linearize(index_, stride_);
  }

  reference operator*() const { return ptr_[offset_]; }
  pointer operator->() const { return ptr_ + offset_; }
  /// Coordinates of the element.
  const typename View::Index& index() const { return index_; }

  ViewIterator& operator++() {
    ++position_;
    for (int axis = rank - 1;; --axis) {
      ++index_[axis];
      offset_ += stride_[axis];
      if (axis == 0 || index_[axis] < size_[axis]) return *this;
      offset_ -= stride_[axis] * size_[axis];
      index_[axis] = 0;
    }
  }
  ViewIterator& operator--() {
    --position_;
    for (int axis = rank - 1;; --axis) {
      --index_[axis];
      offset_ -= stride_[axis];
      if (axis == 0 || index_[axis] >= 0) return *this;
      offset_ += stride_[axis] * size_[axis];
      index_[axis] = size_[axis] - 1;
    }
  }
  ViewIterator operator++(int) {
    ViewIterator before = *this;
    ++*this;
    return before;
  }
  ViewIterator operator--(int) {
    ViewIterator before = *this;
    --*this;
    return before;
  }

  friend bool operator==(const ViewIterator& a, const ViewIterator& b) { return a.position_ == b.position_ && a.ptr_ == b.ptr_; }

 private:
  static constexpr int rank = View::Index::rank();

  pointer ptr_ = nullptr;
  typename View::Index size_;
  typename View::Index stride_;
  typename View::Index index_;
  std::int64_t offset_ = 0;
  std::int64_t position_ = 0;
};

}  // namespace millrace
