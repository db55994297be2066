// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/copy.h>

#include <cstring>

#include <millrace/tensor/cuda/copy.h>
#include <millrace/tensor/launch.h>
#include <millrace/tensor/strided_copy.h>

namespace millrace {
namespace {

/// First and last byte that a view with elements reaches, counted from its storage.
struct Reach {
  std::int64_t first;
  std::int64_t last;
};

Reach reach_of(const Tensor& tensor) {
  const auto size = static_cast<std::int64_t>(size_of(tensor.dtype()));
  const std::int64_t origin = static_cast<const std::byte*>(tensor.raw()) - tensor.storage()->data();
  Reach reach{origin, origin + size - 1};
  for (int axis = 0; axis < tensor.rank(); ++axis) {
    const std::int64_t span = (tensor.dim(axis) - 1) * tensor.strides()[axis] * size;
    (span < 0 ? reach.first : reach.last) += span;
  }
  return reach;
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (!a.shares_storage_with(b) || a.elements() == 0) return false;
  const Reach left = reach_of(a);
  const Reach right = reach_of(b);
  return left.first <= right.last && right.first <= left.last;
}

bool on_cuda(const Place& place) { return std::holds_alternative<CudaPlace>(place); }

void check(const Tensor& src, const Tensor& dst, StreamRef stream) {
  if (src.dtype() != dst.dtype()) throw DTypeError("copy: expected the dtype of " + dst.to_string() + ", found " + src.to_string());
  if (src.dims() != dst.dims()) throw ShapeError("copy: expected the extents of " + dst.to_string() + ", found " + src.to_string());
  const bool at_stream = src.place() == stream.place() || dst.place() == stream.place();
  for (const Tensor* tensor : {&src, &dst}) {
    if (tensor->host_accessible()) continue;
    if (!on_cuda(tensor->place())) throw PlaceError("copy: expected memory that the host can reach, found " + tensor->to_string());
    if (!on_cuda(stream.place()) || !at_stream)
      throw PlaceError("copy: expected a stream of a device that holds the elements, found one of " + stream.place().to_string() + " for " +
                       src.to_string() + " to " + dst.to_string());
  }
}

}  // namespace

void copy(const Tensor& src, const Tensor& dst, StreamRef stream) {
  check(src, dst, stream);
  if (overlap(src, dst)) {
    if (src.raw() == dst.raw() && src.strides() == dst.strides()) return src.check_written();
    throw ArgumentError("copy: expected views that do not overlap, found " + src.to_string() + " and " + dst.to_string() +
                        " in the same storage");
  }
  const auto run = [src, dst](KernelContext& context) {
    if (src.elements() == 0) return;
    if (context.device_queue() != nullptr) return cuda::copy(src, dst, context);
    if (!src.is_contiguous() || !dst.is_contiguous()) return copy_strided(src, dst);
    constexpr std::int64_t grain = 1 << 20;  // bytes that are worth another thread
    const auto* from = static_cast<const std::byte*>(src.raw());
    auto* to = static_cast<std::byte*>(dst.raw_mutable());
    context.team().parallel(static_cast<std::int64_t>(src.bytes()), grain, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
    });
  };
  launch(TensorRefs<1>{&src}, TensorRefs<1>{&dst}, run, stream);
}

Tensor clone(const Tensor& src, StreamRef stream) {
  Tensor made(src.dtype(), src.dims(), stream.memory());
  copy(src, made, stream);
  return made;
}

Tensor contiguous(const Tensor& src, StreamRef stream) { return src.is_contiguous() ? src : clone(src, stream); }

}  // namespace millrace
