// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/slice.h>

#include <algorithm>
#include <string>

#include <millrace/kernels/cpu/reverse_sequence.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// One axis of ONNX Slice: first index and count.
struct Range {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

Range range_of(std::int64_t start, std::int64_t end, std::int64_t step, std::int64_t extent) {
  const auto place = [extent](std::int64_t at) { return at < 0 ? at + extent : at; };
  if (step > 0) {
    const std::int64_t first = std::clamp<std::int64_t>(place(start), 0, extent);
    const std::int64_t last = std::clamp<std::int64_t>(place(end), 0, extent);
    return {first, last > first ? (last - first - 1) / step + 1 : 0};
  }
  const std::int64_t first = std::clamp<std::int64_t>(place(start), -1, extent - 1);
  const std::int64_t last = std::clamp<std::int64_t>(place(end), -1, extent - 1);
  // −step overflows for the least integer: count with the magnitude as unsigned.
  const std::uint64_t stride = std::uint64_t{0} - static_cast<std::uint64_t>(step);
  return {first, first > last ? static_cast<std::int64_t>((static_cast<std::uint64_t>(first - last) - 1) / stride) + 1 : 0};
}

constexpr internal::Implementations<const Tensor&, const Tensor&, int, const Tensor&> reverse_kernels{
    "reverse_sequence", {{"cuda", cuda::reverse_sequence}}, cpu::reverse_sequence};

/// Elements from the start of the storage to the first one of `x`.
std::int64_t offset_of(const Tensor& x) {
  return (static_cast<const std::byte*>(x.raw()) - x.storage()->data()) / static_cast<std::int64_t>(size_of(x.dtype()));
}

/// A view of x. An empty one begins where x does, since its own offset may lead outside of the storage.
Tensor view_of(const Tensor& x, const DDim& dims, const DDim& strides, std::int64_t offset) {
  const Tensor view(x.dtype(), dims, strides, dims.elements() == 0 ? offset_of(x) : offset, x.storage());
  return x.is_read_only() ? view.read_only() : view;
}

}  // namespace

Tensor slice_view(const Tensor& x, const std::vector<std::int64_t>& starts, const std::vector<std::int64_t>& ends,
                  const std::vector<int>& axes, const std::vector<std::int64_t>& steps) {
  if (starts.size() != ends.size() || starts.size() != axes.size() || starts.size() != steps.size())
    throw ShapeError("slice: expected as many starts, ends, axes and steps, found " + std::to_string(starts.size()) + ", " +
                     std::to_string(ends.size()) + ", " + std::to_string(axes.size()) + " and " + std::to_string(steps.size()));
  DDim dims = x.dims();
  DDim strides = x.strides();
  std::int64_t offset = offset_of(x);
  bool seen[max_rank] = {};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const int axis = internal::checked_axis("slice", axes[i], x.dims());
    if (seen[axis]) throw ShapeError("slice: axis " + std::to_string(axis) + " is named twice");
    seen[axis] = true;
    if (steps[i] == 0) throw ArgumentError("slice: expected a step other than 0 for axis " + std::to_string(axis));
    const Range range = range_of(starts[i], ends[i], steps[i], x.dim(axis));
    dims[axis] = range.count;
    if (range.count > 0) offset += range.first * x.strides()[axis];
    // One element alone needs no stride, however large the step.
    strides[axis] = range.count > 1 ? x.strides()[axis] * steps[i] : x.strides()[axis];
  }
  return view_of(x, dims, strides, offset);
}

Tensor slice(const Tensor& x, const std::vector<std::int64_t>& starts, const std::vector<std::int64_t>& ends, const std::vector<int>& axes,
             const std::vector<std::int64_t>& steps, StreamRef stream) {
  return internal::row_major("slice", slice_view(x, starts, ends, axes, steps), stream);
}

Tensor reverse(const Tensor& x, int axis, StreamRef stream) {
  axis = internal::checked_axis("reverse", axis, x.dims());
  DDim strides = x.strides();
  const std::int64_t last = offset_of(x) + (x.dim(axis) - 1) * strides[axis];
  if (x.dim(axis) > 1) strides[axis] = -strides[axis];
  return internal::row_major("reverse", view_of(x, x.dims(), strides, last), stream);
}

Tensor reverse_sequence(const Tensor& x, const Tensor& lengths, int time_axis, int batch_axis, StreamRef stream) {
  internal::check_index_dtype("reverse_sequence", lengths);
  if (x.rank() < 2) throw ShapeError("reverse_sequence: expected a time and a batch axis, found " + x.to_string());
  const int time = internal::checked_axis("reverse_sequence", time_axis, x.dims());
  const int batch = internal::checked_axis("reverse_sequence", batch_axis, x.dims());
  if (time + batch != 1)
    throw ArgumentError("reverse_sequence: expected the axes 0 and 1, found " + std::to_string(time_axis) + " and " +
                        std::to_string(batch_axis));
  internal::check_dims("reverse_sequence", "lengths", lengths, DDim{x.dim(batch)});
  Tensor out(x.dtype(), x.dims(), stream.memory());
  internal::check_device_places("reverse_sequence", stream, {&x, &lengths, &out});
  launch(
      TensorRefs<2>{&x, &lengths}, TensorRefs<1>{&out},
      [=](KernelContext& context) { reverse_kernels.run(x, lengths, time, out, context); }, stream);
  return out;
}

}  // namespace millrace
