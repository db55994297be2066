// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/strided_copy.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace millrace {
namespace {

/// The number of axes at the end that are contiguous in `tensor`: they are copied as one piece.
int contiguous_axes(const Tensor& tensor) {
  std::int64_t step = 1;
  int axis = tensor.rank();
  for (; axis > 0; --axis) {
    if (tensor.dim(axis - 1) != 1 && tensor.strides()[axis - 1] != step) break;
    step *= tensor.dim(axis - 1);
  }
  return tensor.rank() - axis;
}

/// Calls f(from, to) with the offsets in elements of every place of the first `axes` axes.
template <class F>
void each_place(const Tensor& src, const Tensor& dst, int axes, F f) {
  const DDim dims = src.dims().slice(0, axes), steps = dst.strides().slice(0, axes);
  std::int64_t index[max_rank] = {};
  std::int64_t target = 0;
  for_each_offset(dims, src.strides().slice(0, axes), [&](std::int64_t offset) {
    f(offset, target);
    for (int axis = axes - 1; axis >= 0; --axis) {
      target += steps.begin()[axis];
      if (++index[axis] < dims.begin()[axis]) break;
      target -= steps.begin()[axis] * dims.begin()[axis];
      index[axis] = 0;
    }
  });
}

/// Elements one by one: `outer` axes, of which the last is the inner loop.
template <class U>
void copy_elements(const Tensor& src, const Tensor& dst, int outer) {
  const auto* from = static_cast<const U*>(src.raw());
  auto* to = static_cast<U*>(dst.raw_mutable());
  const std::int64_t count = src.dim(outer - 1), from_step = src.strides()[outer - 1], to_step = dst.strides()[outer - 1];
  each_place(src, dst, outer - 1, [&](std::int64_t offset, std::int64_t target) {
    for (std::int64_t i = 0; i < count; ++i) to[target + i * to_step] = from[offset + i * from_step];
  });
}

}  // namespace

void copy_strided(const Tensor& src, const Tensor& dst) {
  if (src.elements() == 0) return;
  const int outer = src.rank() - std::min(contiguous_axes(src), contiguous_axes(dst));
  const std::int64_t elements = src.dims().slice(outer, src.rank()).elements();
  const auto size = static_cast<std::int64_t>(size_of(src.dtype()));
  if (elements == 1 && outer > 0) {
    switch (size) {
      case 1: return copy_elements<std::uint8_t>(src, dst, outer);
      case 2: return copy_elements<std::uint16_t>(src, dst, outer);
      case 4: return copy_elements<std::uint32_t>(src, dst, outer);
      default: return copy_elements<std::uint64_t>(src, dst, outer);
    }
  }
  const auto* from = static_cast<const std::byte*>(src.raw());
  auto* to = static_cast<std::byte*>(dst.raw_mutable());
  each_place(src, dst, outer, [&](std::int64_t offset, std::int64_t target) {
    std::memcpy(to + target * size, from + offset * size, static_cast<std::size_t>(elements * size));
  });
}

}  // namespace millrace
