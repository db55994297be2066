// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/tensor.h>

#include <algorithm>

#include <millrace/tensor/checked.h>
#include <millrace/tensor/cuda/copy.h>
#include <millrace/tensor/pool.h>
#include <millrace/tensor/strided_copy.h>

namespace millrace {
namespace {

std::string axis_text(int axis, const DDim& dims) { return "axis " + std::to_string(axis) + " of " + dims.to_string(); }

}  // namespace

Tensor::Tensor() : dims_{0}, strides_{1} {
  // Default-made tensors are placeholders, made and dropped all the time: they share one block of no bytes.
  static const std::shared_ptr<Allocation> nothing = std::make_shared<Allocation>(host_memory(), 0);
  storage_ = nothing;
}

Tensor::Tensor(DType dtype, const DDim& dims, std::shared_ptr<MemoryResource> memory)
    : dtype_(dtype), dims_(dims), strides_(dims.row_major()), elements_(dims.elements()) {
  const std::int64_t bytes = checked_mul(elements_, static_cast<std::int64_t>(size_of(dtype)));
  storage_ = make_pooled<Allocation>(std::move(memory), static_cast<std::size_t>(bytes));
}

Tensor::Tensor(DType dtype, const DDim& dims, const DDim& strides, std::int64_t offset, std::shared_ptr<Allocation> storage)
    : dtype_(dtype), dims_(dims), strides_(strides), offset_(offset), storage_(std::move(storage)) {
  if (storage_ == nullptr) throw ArgumentError("tensor: expected storage for a view of " + dims.to_string() + ", found none");
  if (dims.rank() != strides.rank())
    throw ShapeError("tensor: expected as many strides as extents, found " + strides.to_string() + " for " + dims.to_string());
  measure();
  std::int64_t first = offset;
  std::int64_t last = offset;
  for (int axis = 0; axis < dims.rank() && elements_ > 0; ++axis) {
    const std::int64_t span = checked_mul(dims[axis] - 1, strides[axis]);
    std::int64_t& reach = span < 0 ? first : last;
    reach = checked_add(reach, span);
  }
  const auto room = static_cast<std::int64_t>(storage_->bytes() / size_of(dtype));
  if (first < 0 || (elements_ > 0 ? last >= room : offset > room))
    throw IndexError("tensor: a view of " + dims.to_string() + " at offset " + std::to_string(offset) + " reaches outside storage of " +
                     std::to_string(room) + " elements");
}

void Tensor::measure() {
  elements_ = dims_.elements();
  contiguous_ = true;
  std::int64_t step = 1;
  for (int axis = dims_.rank() - 1; axis >= 0; --axis) {
    if (dims_[axis] != 1 && strides_[axis] != step) contiguous_ = false;
    step *= dims_[axis];
  }
  if (elements_ > 0) return;
  held();
  contiguous_ = true;
  // Strides of nothing lead anywhere.
  offset_ = std::min(offset_, static_cast<std::int64_t>(storage_->bytes() / size_of(dtype_)));
}

void Tensor::refuse_moved() { throw UninitializedError("tensor: expected one with elements, found one that was moved from"); }

void Tensor::check_count(std::size_t count) const {
  if (std::cmp_not_equal(count, elements_))
    throw ShapeError("tensor: expected " + std::to_string(elements_) + " values for " + dims_.to_string() + ", found " +
                     std::to_string(count));
}

void Tensor::check_written() const {
  held();
  if (elements_ > 0 && !storage_->written())
    throw UninitializedError("tensor: " + to_string() + " is read, but nothing was ever written to its storage");
}

void Tensor::check_readable(DType wanted) const {
  held();
  if (wanted != dtype_)
    throw DTypeError("tensor: expected elements of " + std::string(name_of(wanted)) + ", found " + std::string(name_of(dtype_)));
  if (!host_accessible())
    throw PlaceError("tensor: expected memory that the host can read, found " + to_string() + ": use copy_to(CpuPlace{})");
  check_written();
  const Point point = ready();
  if (point.reached()) return;
  point.check();
  throw NotReadyError("tensor: " + to_string() + " is read on the host before its stream has produced it: await ready() first");
}

void Tensor::check_writable(DType wanted) const {
  held();
  if (wanted != dtype_)
    throw DTypeError("tensor: expected elements of " + std::string(name_of(wanted)) + ", found " + std::string(name_of(dtype_)));
  if (!host_accessible())
    throw PlaceError("tensor: expected memory that the host can write, found " + to_string() + ": use copy_to(CpuPlace{})");
  if (is_read_only()) throw ReadOnlyError("tensor: " + to_string() + " is shared and frozen: write a copy, or a tensor of your own");
}

void Tensor::check_contiguous() const {
  if (!contiguous_)
    throw ShapeError("tensor: expected contiguous elements, found " + to_string() + " with strides " + strides_.to_string());
}

Tensor Tensor::read_only() const {
  Tensor made = *this;
  made.read_only_ = true;
  return made;
}

Tensor Tensor::reshape(const DDim& dims) const {
  check_contiguous();
  DDim wanted = dims;
  std::int64_t known = 1;
  int open = -1;
  for (int axis = 0; axis < dims.rank(); ++axis) {
    if (dims[axis] != DDim::unknown) {
      known = checked_mul(known, dims[axis]);
    } else if (open >= 0) {
      throw ShapeError("reshape: expected at most one open extent, found " + dims.to_string());
    } else {
      open = axis;
    }
  }
  if (open >= 0 && known > 0 && elements_ % known == 0) wanted[open] = elements_ / known;
  if ((open >= 0 && wanted[open] < 0) || wanted.elements() != elements_)
    throw ShapeError("reshape: " + dims_.to_string() + " has " + std::to_string(elements_) + " elements and cannot become " +
                     dims.to_string());
  Tensor made = *this;
  made.dims_ = wanted;
  made.strides_ = wanted.row_major();
  return made;
}

Tensor Tensor::slice(int axis, std::int64_t begin, std::int64_t end) const {
  const int at = dims_.checked_axis(axis);
  if (begin < 0 || begin > end || end > dims_[at])
    throw IndexError("slice: [" + std::to_string(begin) + ", " + std::to_string(end) + ") of " + axis_text(axis, dims_));
  Tensor made = *this;
  made.dims_[at] = end - begin;
  made.offset_ += begin * strides_[at];
  made.measure();
  return made;
}

Tensor Tensor::select(int axis, std::int64_t index) const {
  const int at = dims_.checked_axis(axis);
  if (index < 0 || index >= dims_[at]) throw IndexError("select: index " + std::to_string(index) + " of " + axis_text(axis, dims_));
  Tensor made = *this;
  made.offset_ += index * strides_[at];
  made.dims_ = dims_.erased(at);
  made.strides_ = strides_.erased(at);
  made.measure();
  return made;
}

Tensor Tensor::permute(const std::vector<int>& axes) const {
  bool seen[max_rank] = {};
  Tensor made = *this;
  if (std::cmp_not_equal(axes.size(), rank()))
    throw ShapeError("permute: expected " + std::to_string(rank()) + " axes for " + dims_.to_string() + ", found " +
                     std::to_string(axes.size()));
  for (int to = 0; to < rank(); ++to) {
    const int from = dims_.checked_axis(axes[static_cast<std::size_t>(to)]);
    if (seen[from]) throw ShapeError("permute: axis " + std::to_string(from) + " is named twice");
    seen[from] = true;
    made.dims_[to] = dims_[from];
    made.strides_[to] = strides_[from];
  }
  made.measure();
  return made;
}

void Tensor::resize(const DDim& dims) {
  held();
  const std::int64_t bytes = checked_mul(dims.elements(), static_cast<std::int64_t>(size_of(dtype_)));
  const std::int64_t used = offset_ * static_cast<std::int64_t>(size_of(dtype_));
  if (std::cmp_greater(checked_add(used, bytes), storage_->bytes())) {
    storage_ = make_pooled<Allocation>(storage_->shared_resource(), static_cast<std::size_t>(bytes));
    offset_ = 0;
    read_only_ = false;
  }
  dims_ = dims;
  strides_ = dims.row_major();
  measure();
}

Tensor Tensor::copy_to(const CpuPlace&) const {
  held();
  const bool on_cuda = cuda::built() && std::holds_alternative<CudaPlace>(place());
  if (!host_accessible() && !on_cuda) throw PlaceError("copy_to: no backend of " + place().to_string() + " is part of this build");
  check_written();
  ready().wait();
  Tensor made(dtype_, dims_);
  made.storage_->mark_written();
  if (!host_accessible()) {
    cuda::copy_to_host(*this, made);
    return made;
  }
  copy_strided(*this, made);
  return made;
}

std::int64_t Tensor::offset_of(const DDim& index) const {
  const bool scalar = index.rank() == 0 || (index.rank() == 1 && index[0] == 0);
  if (rank() == 0 && scalar) return 0;
  if (index.rank() != rank())
    throw IndexError("element: expected " + std::to_string(rank()) + " coordinates for " + dims_.to_string() + ", found " +
                     index.to_string());
  std::int64_t offset = 0;
  for (int axis = 0; axis < rank(); ++axis) {
    if (index[axis] < 0 || index[axis] >= dims_[axis])
      throw IndexError("element: index " + index.to_string() + " is outside " + dims_.to_string());
    offset += index[axis] * strides_[axis];
  }
  return offset;
}

ElementRef Tensor::operator[](const DDim& index) { return ElementRef(*this, index); }

double Tensor::operator[](const DDim& index) const {
  const std::int64_t offset = offset_of(index);
  return visit_dtype(dtype_, [&]<class T>(std::type_identity<T>) { return convert_element<double>(data<T>()[offset]); });
}

double Tensor::item() const {
  if (elements_ != 1) throw ShapeError("item: expected one element, found " + to_string());
  return visit_dtype(dtype_, [&]<class T>(std::type_identity<T>) { return convert_element<double>(*data<T>()); });
}

std::int64_t Tensor::item_int() const {
  if (elements_ != 1) throw ShapeError("item: expected one element, found " + to_string());
  if (is_floating(dtype_)) throw DTypeError("item: expected an integer or bool, found " + to_string());
  return visit_dtype(dtype_, [&]<class T>(std::type_identity<T>) { return convert_element<std::int64_t>(*data<T>()); });
}

std::string Tensor::to_string() const {
  const std::string type = std::string(name_of(dtype_)) + dims_.to_string();
  return storage_ == nullptr ? type + ", moved from" : type + " on " + place().to_string();
}

ElementRef::ElementRef(Tensor& tensor, const DDim& index) : tensor_(tensor), offset_(tensor.offset_of(index)) {}

ElementRef& ElementRef::operator=(double value) {
  visit_dtype(tensor_.dtype(), [&]<class T>(std::type_identity<T>) { tensor_.mutable_data<T>()[offset_] = convert_element<T>(value); });
  return *this;
}

ElementRef::operator double() const {
  return visit_dtype(tensor_.dtype(), [&]<class T>(std::type_identity<T>) { return convert_element<double>(tensor_.data<T>()[offset_]); });
}

}  // namespace millrace
