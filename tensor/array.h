// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include <millrace/tensor/tensor.h>

namespace millrace {

namespace detail {
/// IndexError names coordinates and extents.
template <int D>
void check_index(const Dim<D>& index, const Dim<D>& size) {
  for (int axis = 0; axis < D; ++axis)
    if (index[axis] < 0 || index[axis] >= size[axis])
      throw IndexError("element: index " + DDim(index).to_string() + " is outside " + DDim(size).to_string());
}
}  // namespace detail

/// The result of `array[index]` on an array that may be written: an element that is assigned or read.
template <class T>
class ArrayElement {
 public:
  ArrayElement(const Tensor& tensor, std::int64_t offset) : tensor_(tensor), offset_(offset) {}
  const ArrayElement& operator=(T value) const {
    Tensor(tensor_).template mutable_data<T>()[offset_] = value;
    return *this;
  }
  const ArrayElement& operator=(const ArrayElement& other) const { return *this = static_cast<T>(other); }
  ArrayElement(const ArrayElement&) = default;
  operator T() const { return tensor_.template data<T>()[offset_]; }

 private:
  const Tensor& tensor_;
  std::int64_t offset_;
};

/// The typed face of a tensor: an element type and a rank that the compiler knows. Shares the tensor's storage, so copying an array copies
/// no element. `Array<const T, D>` only reads. Element access works where the host may look; elsewhere it is a PlaceError that names
/// `copy_to`. Thread-safety as for Tensor.
template <class T, int D>
class Array {
 public:
  using value_type = T;

  /// Uninitialised elements from `memory`, row-major.
  explicit Array(const Dim<D>& size, std::shared_ptr<MemoryResource> memory = host_memory())
    requires(!std::is_const_v<T>)
      : Array(Tensor(dtype_of<T>, DDim(size), std::move(memory))) {}
  /// The face of `tensor`; a scalar is taken as one axis of extent 1. DTypeError, ShapeError (rank) when it is another; ReadOnlyError when
  /// the tensor cannot be written and T is not const.
  explicit Array(const Tensor& tensor) : tensor_(D == 1 && tensor.rank() == 0 ? tensor.reshape(DDim{1}) : tensor) {
    if (tensor.dtype() != dtype_of<T>)
      throw DTypeError("array: expected elements of " + std::string(name_of(dtype_of<T>)) + ", found " + tensor.to_string());
    size_ = tensor_.dims().template as<D>();
    stride_ = tensor_.strides().template as<D>();
    if (!std::is_const_v<T> && tensor_.is_read_only())
      throw ReadOnlyError("array: " + tensor.to_string() + " is shared and frozen: ask for an array of const elements");
  }

  static constexpr int rank() { return D; }
  const Dim<D>& size() const noexcept { return size_; }
  const Dim<D>& stride() const noexcept { return stride_; }
  std::int64_t elements() const { return tensor_.elements(); }
  /// The first element, for host code that follows `stride`. For T not const the storage counts as written from then on; for const T it
  /// must have been written (UninitializedError) and be there (NotReadyError).
  T* ptr() const {
    if constexpr (std::is_const_v<T>)
      return tensor_.template data<std::remove_const_t<T>>();
    else
      return Tensor(tensor_).template mutable_data<T>();
  }
  /// The run-time face of the same elements.
  const Tensor& tensor() const noexcept { return tensor_; }
  operator const Tensor&() const noexcept { return tensor_; }

  /// One element, checked: `a[make_dim(0, 1)] = 1.0f`. IndexError names coordinates and extents; reading what nothing wrote is an error.
  auto operator[](const Dim<D>& index) const {
    detail::check_index(index, size_);
    const std::int64_t offset = linearize(index, stride_);
    if constexpr (std::is_const_v<T>)
      return ptr()[offset];
    else
      return ArrayElement<T>(tensor_, offset);
  }

 private:
  Tensor tensor_;
  Dim<D> size_;
  Dim<D> stride_;
};

}  // namespace millrace
