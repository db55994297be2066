// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/cuda/copy.h>

#include <cstring>
#include <vector>

#include <millrace/tensor/error.h>
#include <millrace/tensor/with_cuda/recording.h>
#include <millrace/tensor/with_cuda/stream_state.h>
#include <millrace/tensor/with_cuda/walk.h>
#include <millrace/tensor/with_cuda/each_index.cuh>

namespace millrace::cuda {
namespace {

template <class U>
struct CopyElement {
  Walk<2> walk;
  const U* from;
  U* to;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[2];
    walk.find(i, at);
    to[at[1]] = from[at[0]];
  }
};

template <class U>
void copy_elements(const Queue& queue, const Tensor& src, const Tensor& dst) {
  const DDim* const strides[2] = {&src.strides(), &dst.strides()};
  each_index(queue, src.elements(),
             CopyElement<U>{Walk<2>(src.dims(), strides), static_cast<const U*>(src.raw()), static_cast<U*>(dst.raw_mutable())});
}

/// Both on the device of the queue.
void copy_there(const Queue& queue, const Tensor& src, const Tensor& dst) {
  if (src.is_contiguous() && dst.is_contiguous())
    return check(cudaMemcpyAsync(dst.raw_mutable(), src.raw(), src.bytes(), cudaMemcpyDeviceToDevice, queue.stream), "cudaMemcpyAsync",
                 queue.device);
  switch (size_of(src.dtype())) {
    case 8: return copy_elements<std::uint64_t>(queue, src, dst);
    case 4: return copy_elements<std::uint32_t>(queue, src, dst);
    case 2: return copy_elements<std::uint16_t>(queue, src, dst);
    default: return copy_elements<std::uint8_t>(queue, src, dst);
  }
}

/// (cudafe 13.0 leaves the == of a defaulted <=> undefined: places are not compared here.)
bool lies_on(const Tensor& x, int device) {
  const Place place = x.place();
  const auto* cuda = std::get_if<CudaPlace>(&place);
  return cuda != nullptr && cuda->index == device;
}

/// Contiguous bytes between the queue's device and the host or another device. Memory that CUDA goes on reading or writing is kept: what it
/// reads of pageable memory it has staged when the call returns, but nothing says so of what it writes there.
void copy_bytes(const Queue& queue, const Tensor& src, const Tensor& dst) {
  if (queue.recording != nullptr) {
    // A graph would look there each time that it runs.
    if (!src.host_accessible()) throw UnsupportedError("copy: what is recorded copies to the host or to another device");
    return copy_there(queue, queue.recording->constant(src.raw(), src.dtype(), src.dims()), dst);
  }
  check(cudaMemcpyAsync(dst.raw_mutable(), src.raw(), src.bytes(), cudaMemcpyDefault, queue.stream), "cudaMemcpyAsync", queue.device);
  for (const Tensor* one : {&src, &dst})
    if (!lies_on(*one, queue.device) && (one == &dst || one->storage()->shared_resource() != host_memory()))
      queue.state->keep(one->storage());
}

Tensor host_rows(const Tensor& x) {
  Tensor made(x.dtype(), x.dims());
  const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
  auto* to = static_cast<std::byte*>(made.raw_mutable());
  const auto* from = static_cast<const std::byte*>(x.raw());
  for_each_offset(x.dims(), x.strides(), [&](std::int64_t offset) {
    std::memcpy(to, from + offset * size, static_cast<std::size_t>(size));
    to += size;
  });
  return made;
}

}  // namespace

bool built() noexcept { return true; }

void copy(const Tensor& src, const Tensor& dst, KernelContext& context) {
  if (src.elements() == 0) return;
  const Queue& queue = queue_of(context);
  const bool src_here = lies_on(src, queue.device);
  const bool dst_here = lies_on(dst, queue.device);
  if (src_here && dst_here) return copy_there(queue, src, dst);
  if (src.is_contiguous() && dst.is_contiguous()) return copy_bytes(queue, src, dst);
  if (dst_here) {
    // Row-major on the way, and spread over the strides where it arrives.
    if (!src.is_contiguous() && !src.host_accessible())
      throw ShapeError("copy: expected contiguous elements on the other device, found " + src.to_string());
    const Tensor rows = src.is_contiguous() ? src : host_rows(src);
    if (dst.is_contiguous()) return copy_bytes(queue, rows, dst);
    const Tensor arrived(dst.dtype(), dst.dims(), *queue.memory);
    copy_bytes(queue, rows, arrived);
    return copy_there(queue, arrived, dst);
  }
  Tensor rows = src;
  if (!src.is_contiguous()) {
    rows = Tensor(src.dtype(), src.dims(), *queue.memory);
    copy_there(queue, src, rows);
  }
  if (dst.is_contiguous()) return copy_bytes(queue, rows, dst);
  if (!dst.host_accessible()) throw ShapeError("copy: expected contiguous elements on the other device, found " + dst.to_string());
  if (queue.recording != nullptr) throw UnsupportedError("copy: what is recorded copies to the host");
  const Tensor arrived(dst.dtype(), dst.dims());
  copy_bytes(queue, rows, arrived);
  check(cudaStreamSynchronize(queue.stream), "cudaStreamSynchronize", queue.device);
  const auto size = static_cast<std::int64_t>(size_of(dst.dtype()));
  const auto* from = static_cast<const std::byte*>(arrived.raw());
  auto* to = static_cast<std::byte*>(dst.raw_mutable());
  for_each_offset(dst.dims(), dst.strides(), [&](std::int64_t offset) {
    std::memcpy(to + offset * size, from, static_cast<std::size_t>(size));
    from += size;
  });
}

void copy_to_host(const Tensor& src, const Tensor& dst) {
  if (src.elements() == 0) return;
  if (dynamic_cast<const RecordingMemory*>(src.storage()->shared_resource().get()) != nullptr)
    throw UnsupportedError("copy: the host looks at what is only being recorded");
  const Place place = src.place();
  const int device = std::get<CudaPlace>(place).index;
  const OnDevice here(device);
  // The elements are there, and none of our streams waits for the default one.
  const auto fetch = [&](void* to, const void* from, std::size_t bytes) {
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy", device);
  };
  if (src.is_contiguous()) return fetch(dst.raw_mutable(), src.raw(), src.bytes());
  // All that the view reaches, of which it is taken on the host.
  const auto size = static_cast<std::int64_t>(size_of(src.dtype()));
  std::int64_t first = 0;
  std::int64_t last = 0;
  for (int axis = 0; axis < src.rank(); ++axis) {
    const std::int64_t span = (src.dim(axis) - 1) * src.strides()[axis];
    (span < 0 ? first : last) += span;
  }
  std::vector<std::byte> reach(static_cast<std::size_t>((last - first + 1) * size));
  fetch(reach.data(), static_cast<const std::byte*>(src.raw()) + first * size, reach.size());
  auto* to = static_cast<std::byte*>(dst.raw_mutable());
  for_each_offset(src.dims(), src.strides(), [&](std::int64_t offset) {
    std::memcpy(to, reach.data() + (offset - first) * size, static_cast<std::size_t>(size));
    to += size;
  });
}

}  // namespace millrace::cuda
