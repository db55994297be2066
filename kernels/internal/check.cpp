// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/internal/check.h>

#include <algorithm>

#include <millrace/tensor/cuda/copy.h>
#include <millrace/tensor/error.h>

namespace millrace::internal {
namespace {

std::string start(std::string_view op) { return std::string(op) + ": expected "; }

}  // namespace

bool on_cuda(const Place& place) { return std::holds_alternative<CudaPlace>(place); }

void check_device_places(std::string_view op, StreamRef stream, std::initializer_list<const Tensor*> tensors) {
  const MemoryResource* memory = stream.memory().get();
  if (!memory->host_accessible() && !(cuda::built() && on_cuda(stream.place())))
    throw PlaceError(start(op) + "a place whose kernels this build has (host memory), found " + stream.place().to_string() +
                     ": there are no CUDA kernels here");
  for (const Tensor* tensor : tensors) {
    if (tensor == nullptr) continue;
    if (tensor->storage() == nullptr) throw UninitializedError(start(op) + "tensors with elements, found " + tensor->to_string());
    if (&tensor->storage()->resource() == memory) continue;
    if (tensor->place() != stream.place())
      throw PlaceError(start(op) + "tensors on " + stream.place().to_string() + " as the stream, found " + tensor->to_string() +
                       ": copy it there first");
  }
}

void check_host(std::string_view op, StreamRef stream, const Tensor& x) {
  if (on_cuda(stream.place()))
    throw PlaceError(start(op) + "host memory, found " + x.to_string() + ": the op has no kernel for a device, run the program on cpu");
}

void check_device_plan_place(std::string_view op, const Place& place) {
  if (on_cuda(place) && !cuda::built())
    throw PlaceError(start(op) + "a place whose kernels this build has (host memory), found " + place.to_string() +
                     ": there are no CUDA kernels here");
}

void check_dtype(std::string_view op, std::string_view role, const Tensor& tensor, DType expected) {
  if (tensor.dtype() != expected)
    throw DTypeError(start(op) + std::string(name_of(expected)) + " for " + std::string(role) + ", found " + tensor.to_string());
}

void check_same_dtype(std::string_view op, const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype()) throw DTypeError(start(op) + "one dtype, found " + a.to_string() + " and " + b.to_string());
}

void check_floating(std::string_view op, const Tensor& tensor) {
  if (!is_floating(tensor.dtype())) throw DTypeError(start(op) + "f64, f32, f16 or bf16, found " + tensor.to_string());
}

void check_index_dtype(std::string_view op, const Tensor& tensor) {
  if (tensor.dtype() != DType::i64 && tensor.dtype() != DType::i32)
    throw DTypeError(start(op) + "indices of i64 or i32, found " + tensor.to_string());
}

void check_dims(std::string_view op, std::string_view role, const Tensor& tensor, const DDim& expected) {
  if (tensor.dims() != expected)
    throw ShapeError(start(op) + expected.to_string() + " for " + std::string(role) + ", found " + tensor.dims().to_string());
}

void check_contiguous(std::string_view op, std::string_view role, const Tensor& tensor) {
  if (!tensor.is_contiguous())
    throw ShapeError(start(op) + "contiguous elements for " + std::string(role) + ", found " + tensor.to_string() + " with strides " +
                     tensor.strides().to_string());
}

void check_row_offsets(std::string_view op, const Tensor& x, const std::vector<std::int64_t>& offsets) {
  if (x.rank() == 0) throw ShapeError(std::string(op) + ": expected rows, found " + x.to_string());
  if (offsets.empty() || offsets.front() != 0 || !std::is_sorted(offsets.begin(), offsets.end()) || offsets.back() != x.dim(0))
    throw LoDError(std::string(op) + ": expected offsets from 0 to the " + std::to_string(x.dim(0)) + " rows of " + x.to_string() +
                   " that never decrease, found " + std::to_string(offsets.size()) + " offsets that end at " +
                   (offsets.empty() ? "nothing" : std::to_string(offsets.back())));
}

int checked_axis(std::string_view op, int axis, const DDim& dims) {
  const int at = axis < 0 ? axis + dims.rank() : axis;
  if (at < 0 || at >= dims.rank()) throw IndexError(start(op) + "an axis of " + dims.to_string() + ", found " + std::to_string(axis));
  return at;
}

}  // namespace millrace::internal
