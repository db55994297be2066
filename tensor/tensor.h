// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <millrace/tensor/ddim.h>
#include <millrace/tensor/dtype.h>
#include <millrace/tensor/memory.h>

namespace millrace {

class ElementRef;

/// dtype + extents + strides + shared storage: a view by value. Copying a Tensor copies the view, never the elements.
///
/// Row-major unless a view changed the strides. Element access and `data` work where the host may look (the CPU, simulators); on a device
/// they throw PlaceError and name `copy_to`. Storage that nothing ever wrote is refused (UninitializedError); so is what its stream has not
/// produced yet (NotReadyError: await `ready()` first). Not thread-safe for writing; safe to read from several threads.
class Tensor {
 public:
  /// No elements: f32 of extents [0].
  Tensor();
  /// Uninitialised storage from `memory`.
  Tensor(DType dtype, const DDim& dims, std::shared_ptr<MemoryResource> memory = host_memory());
  /// A view of existing storage. `offset` is in elements. IndexError when it reaches outside.
  Tensor(DType dtype, const DDim& dims, const DDim& strides, std::int64_t offset, std::shared_ptr<Allocation> storage);

  /// Host tensors from values, row-major. ShapeError when the counts differ.
  template <class T>
  static Tensor from(const std::vector<T>& values, const DDim& dims) {
    Tensor made(dtype_of<T>, dims);
    made.check_count(values.size());
    T* to = made.mutable_data<T>();
    for (std::size_t i = 0; i < values.size(); ++i) to[i] = values[i];
    return made;
  }
  template <class T>
  static Tensor from(std::initializer_list<T> values) {
    return from(std::vector<T>(values), DDim{static_cast<std::int64_t>(values.size())});
  }
  template <class T>
  static Tensor scalar(T value) {
    return from(std::vector<T>{value}, DDim{});
  }

  DType dtype() const noexcept { return dtype_; }
  const DDim& dims() const noexcept { return dims_; }
  const DDim& strides() const noexcept { return strides_; }
  int rank() const noexcept { return dims_.rank(); }
  std::int64_t dim(int axis) const { return dims_[axis]; }
  std::int64_t elements() const { return elements_; }
  std::size_t bytes() const { return static_cast<std::size_t>(elements_) * size_of(dtype_); }
  bool is_contiguous() const noexcept { return contiguous_; }
  Place place() const { return held().resource().place(); }
  bool host_accessible() const { return held().resource().host_accessible(); }

  /// The first element, for host code. DTypeError, PlaceError, UninitializedError, NotReadyError as above. Strided views: use `strides()`.
  template <class T>
  const T* data() const {
    check_readable(dtype_of<T>);
    return static_cast<const T*>(raw());
  }
  /// The same for writing; marks the storage as written. ReadOnlyError on frozen or read-only storage.
  template <class T>
  T* mutable_data() {
    check_writable(dtype_of<T>);
    storage_->mark_written();
    return static_cast<T*>(raw_mutable());
  }
  /// Contiguous elements as a span (ShapeError otherwise).
  template <class T>
  std::span<const T> span() const {
    check_contiguous();
    return {data<T>(), static_cast<std::size_t>(elements_)};
  }
  /// All elements in row-major order, whatever the strides.
  template <class T>
  std::vector<T> to_vector() const;

  /// For kernels inside stream order: no check of contents or readiness.
  const void* raw() const noexcept { return storage_->data() + offset_ * static_cast<std::int64_t>(size_of(dtype_)); }
  void* raw_mutable() const noexcept { return storage_->data() + offset_ * static_cast<std::int64_t>(size_of(dtype_)); }

  /// The point after which the elements are there.
  Point ready() const { return held().ready(); }
  const std::shared_ptr<Allocation>& storage() const noexcept { return storage_; }
  bool shares_storage_with(const Tensor& other) const noexcept { return storage_ == other.storage_; }
  /// Throws UninitializedError when nothing was ever written to the storage of a tensor that has elements, or when the tensor was moved from.
  void check_written() const;

  /// A view that cannot be written through.
  Tensor read_only() const;
  bool is_read_only() const { return read_only_ || held().frozen(); }

  /// Views. `reshape` needs contiguous storage and the same count; one extent may be −1. IndexError, ShapeError name both sides.
  Tensor reshape(const DDim& dims) const;
  Tensor slice(int axis, std::int64_t begin, std::int64_t end) const;
  /// Rows [begin, end) of axis 0.
  Tensor rows(std::int64_t begin, std::int64_t end) const { return slice(0, begin, end); }
  /// Index `index` of `axis`, which goes away.
  Tensor select(int axis, std::int64_t index) const;
  /// Axis i of the result is axis `axes[i]`.
  Tensor permute(const std::vector<int>& axes) const;

  /// Changes the extents in place: keeps the storage while the elements fit it (shrinking and growing back keeps the pointer), else takes
  /// new.
  void resize(const DDim& dims);
  /// Row-major elements on the host. Waits for `ready()`; blocks the calling thread.
  Tensor copy_to(const CpuPlace& place) const;

  /// One element by coordinates: converts from and to double; `t[make_ddim({0, 1})] = 1.0`. IndexError names index and extents.
  ElementRef operator[](const DDim& index);
  double operator[](const DDim& index) const;
  /// The value of a tensor with one element, as double. ShapeError otherwise.
  double item() const;
  std::int64_t item_int() const;

  /// "f32[2, 3] on cpu".
  std::string to_string() const;

 private:
  friend class ElementRef;
  /// The storage. UninitializedError when the tensor was moved from.
  const Allocation& held() const {
    if (storage_ == nullptr) refuse_moved();
    return *storage_;
  }
  [[noreturn]] static void refuse_moved();
  void check_count(std::size_t count) const;
  void check_readable(DType wanted) const;
  void check_writable(DType wanted) const;
  void check_contiguous() const;
  std::int64_t offset_of(const DDim& index) const;
  void measure();

  DType dtype_ = DType::f32;
  bool contiguous_ = true;
  bool read_only_ = false;
  DDim dims_;
  DDim strides_;
  std::int64_t offset_ = 0;
  std::int64_t elements_ = 0;
  std::shared_ptr<Allocation> storage_;
};

/// The result of `tensor[index]` on a tensor that may be written.
class ElementRef {
 public:
  ElementRef(Tensor& tensor, const DDim& index);
  ElementRef& operator=(double value);
  operator double() const;

 private:
  Tensor& tensor_;
  std::int64_t offset_;
};

/// The designs' names for a tensor of run-time type and rank, and for what stands behind it.
using DArray = Tensor;
using DArrayVar = Tensor;

/// A host tensor filled with `value`; its dtype is that of `value`. PlaceError for other places: those need a device of a runtime.
template <class T>
Tensor make_darray(const DDim& dims, T value, const Place& place = CpuPlace{}) {
  if (!place.is_cpu())
    throw PlaceError("make_darray: expected cpu, found " + place.to_string() + ": fill a tensor on a stream of that device");
  Tensor made(dtype_of<T>, dims);
  T* to = made.mutable_data<T>();
  for (std::int64_t i = 0; i < made.elements(); ++i) to[i] = value;
  return made;
}

/// Calls `f(offset)` with the offset in elements of each element of `dims` over `strides`, in row-major order.
template <class F>
void for_each_offset(const DDim& dims, const DDim& strides, F&& f) {
  const std::int64_t count = dims.elements();
  if (count == 0) return;
  std::int64_t index[max_rank] = {};
  std::int64_t offset = 0;
  for (std::int64_t done = 0; done < count; ++done) {
    f(offset);
    for (int axis = dims.rank() - 1; axis >= 0; --axis) {
      offset += strides.begin()[axis];
      if (++index[axis] < dims.begin()[axis]) break;
      offset -= strides.begin()[axis] * dims.begin()[axis];
      index[axis] = 0;
    }
  }
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  const T* from = elements_ == 0 ? nullptr : data<T>();
  std::vector<T> values;
  values.reserve(static_cast<std::size_t>(elements_));
  for_each_offset(dims_, strides_, [&](std::int64_t offset) { values.push_back(from[offset]); });
  return values;
}

}  // namespace millrace
