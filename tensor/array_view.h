// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/array.h>
#include <millrace/tensor/view_iterator.h>

namespace millrace {

/// Pointer, size and stride: an array as an operation on a device takes it, without ownership. Iterates over the elements in row-major
/// order. The array it was made from must outlive it.
template <class T, int D>
class ArrayView {
 public:
  using value_type = T;
  using Index = Dim<D>;
  using iterator = ViewIterator<ArrayView>;

  MILLRACE_HD constexpr ArrayView(T* ptr, const Dim<D>& size, const Dim<D>& stride) : ptr_(ptr), size_(size), stride_(stride) {}
  /// A view of a host array: storage is marked as written when T is not const, and must have been written when it is.
  ArrayView(const Array<T, D>& array) : ArrayView(array.ptr(), array.size(), array.stride()) {}

  MILLRACE_HD constexpr const Dim<D>& size() const { return size_; }
  MILLRACE_HD constexpr const Dim<D>& stride() const { return stride_; }
  MILLRACE_HD constexpr T* ptr() const { return ptr_; }
  MILLRACE_HD constexpr std::int64_t elements() const { return product(size_); }
  /// Unchecked, for kernels.
  MILLRACE_HD constexpr T& operator[](const Dim<D>& index) const { return ptr_[linearize(index, stride_)]; }

  iterator begin() const { return iterator(*this, 0); }
  iterator end() const { return iterator(*this, elements()); }

 private:
  T* ptr_;
  Dim<D> size_;
  Dim<D> stride_;
};

/// The view of an array.
template <class T, int D>
ArrayView<T, D> make_view(const Array<T, D>& in) {
  return in;
}

/// An iterator at coordinates `idx`. IndexError names coordinates and extents.
template <class T, int D>
ViewIterator<ArrayView<T, D>> make_iterator(const ArrayView<T, D>& in, const Dim<D>& idx) {
  detail::check_index(idx, in.size());
  std::int64_t position = 0;
  for (int axis = 0; axis < D; ++axis) position = position * in.size()[axis] + idx[axis];
  return {in, position};
}
template <class T, int D>
ViewIterator<ArrayView<T, D>> make_iterator(const Array<T, D>& in, const Dim<D>& idx) {
  return make_iterator(make_view(in), idx);
}

}  // namespace millrace
