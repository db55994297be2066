// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/scatter.h>

#include <string>

#include <millrace/kernels/cpu/scatter.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

[[noreturn]] void refuse(const char* op, const std::string& expected, const DDim& x, const DDim& index) {
  throw ShapeError(std::string(op) + ": expected " + expected + ", found " + index.to_string() + " for " + x.to_string());
}

void check_reduction(const char* op, const Tensor& x, ScatterReduction reduction) {
  if (reduction != ScatterReduction::none && x.dtype() == DType::boolean)
    throw DTypeError(std::string(op) + ": expected numbers to reduce, found " + x.to_string());
}

/// Row-major elements of its own.
Tensor copied(const Tensor& x, StreamRef stream) {
  Tensor out(x.dtype(), x.dims(), stream.memory());
  copy(x, out, stream);
  return out;
}

}  // namespace

DDim gather_nd_dims(const DDim& x, const DDim& index, int batch_axes) {
  const std::int64_t places = index.rank() == 0 ? DDim::unknown : index[index.rank() - 1];
  if (index.rank() < 1 || batch_axes < 0 || batch_axes >= index.rank() || places < 0 || places > x.rank() - batch_axes)
    refuse("gather_nd", "indices [batch axes…, …, r] with r of at most the other axes", x, index);
  for (int axis = 0; axis < batch_axes; ++axis)
    if (x[axis] != index[axis] && x[axis] != DDim::unknown && index[axis] != DDim::unknown)
      refuse("gather_nd", "equal batch axes", x, index);
  DDim dims = index.slice(0, index.rank() - 1);
  for (int axis = batch_axes + static_cast<int>(places); axis < x.rank(); ++axis) dims = dims.inserted(dims.rank(), x[axis]);
  return dims;
}

namespace {

constexpr internal::Implementations<const Tensor&, const Tensor&, int, const Tensor&> gather_kernels{
    "gather_nd", {{"cuda", cuda::gather_nd}}, cpu::gather_nd};
// A reference of one thread: a later update of an element wins.
constexpr internal::Implementations<const Tensor&, const Tensor&, ScatterReduction, const Tensor&> scatter_kernels{
    "scatter_nd",
    {{"cuda", cuda::scatter_nd}},
    [](const Tensor& updates, const Tensor& index, ScatterReduction reduction, const Tensor& out, ThreadTeam&) {
      cpu::scatter_nd(updates, index, reduction, out);
    }};
constexpr internal::Implementations<const Tensor&, const Tensor&, int, ScatterReduction, const Tensor&> element_kernels{
    "scatter_elements",
    {{"cuda", cuda::scatter_elements}},
    [](const Tensor& updates, const Tensor& index, int axis, ScatterReduction reduction, const Tensor& out, ThreadTeam&) {
      cpu::scatter_elements(updates, index, axis, reduction, out);
    }};

}  // namespace

Tensor gather_nd(const Tensor& x, const Tensor& index, int batch_axes, StreamRef stream) {
  internal::check_index_dtype("gather_nd", index);
  const DDim dims = gather_nd_dims(x.dims(), index.dims(), batch_axes);
  const Tensor from = contiguous(x, stream);
  const Tensor out(x.dtype(), dims, stream.memory());
  internal::check_device_places("gather_nd", stream, {&x, &index});
  launch(
      TensorRefs<2>{&from, &index}, TensorRefs<1>{&out},
      [=](KernelContext& context) { gather_kernels.run(from, index, batch_axes, out, context); }, stream);
  return out;
}

Tensor scatter_nd(const Tensor& x, const Tensor& index, const Tensor& updates, ScatterReduction reduction, StreamRef stream) {
  internal::check_index_dtype("scatter_nd", index);
  internal::check_same_dtype("scatter_nd", x, updates);
  internal::check_device_places("scatter_nd", stream, {&x, &index, &updates});
  check_reduction("scatter_nd", x, reduction);
  const std::int64_t places = index.rank() == 0 ? -1 : index.dim(index.rank() - 1);
  if (places < 0 || places > x.rank()) refuse("scatter_nd", "indices [.., r] with r of at most the rank", x.dims(), index.dims());
  internal::check_dims("scatter_nd", "updates", updates, gather_nd_dims(x.dims(), index.dims(), 0));
  const Tensor from = contiguous(updates, stream);
  const Tensor out = copied(x, stream);
  launch(
      TensorRefs<2>{&from, &index}, TensorRefs<1>{&out},
      [=](KernelContext& context) { scatter_kernels.run(from, index, reduction, out, context); }, stream);
  return out;
}

Tensor scatter_elements(const Tensor& x, const Tensor& index, const Tensor& updates, int axis, ScatterReduction reduction,
                        StreamRef stream) {
  const int at = internal::checked_axis("scatter_elements", axis, x.dims());
  internal::check_index_dtype("scatter_elements", index);
  internal::check_same_dtype("scatter_elements", x, updates);
  internal::check_device_places("scatter_elements", stream, {&x, &index, &updates});
  check_reduction("scatter_elements", x, reduction);
  internal::check_dims("scatter_elements", "updates", updates, index.dims());
  bool fits = index.rank() == x.rank();
  for (int i = 0; fits && i < x.rank(); ++i) fits = i == at || index.dim(i) <= x.dim(i);
  if (!fits) refuse("scatter_elements", "indices of the rank and within the extents", x.dims(), index.dims());
  const Tensor from = contiguous(updates, stream);
  const Tensor out = copied(x, stream);
  launch(
      TensorRefs<2>{&from, &index}, TensorRefs<1>{&out},
      [=](KernelContext& context) { element_kernels.run(from, index, at, reduction, out, context); }, stream);
  return out;
}

}  // namespace millrace
