// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/row_conv.h>

#include <millrace/kernels/cpu/row_conv.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr internal::Implementations<const Tensor&, const Tensor&, const std::vector<std::int64_t>&, const Tensor&> kernels{
    "row_conv", {{"cuda", cuda::row_conv}}, cpu::row_conv};

}  // namespace

Tensor row_conv(const Tensor& x, const Tensor& w, const std::vector<std::int64_t>& offsets, StreamRef stream) {
  internal::check_device_places("row_conv", stream, {&x, &w});
  internal::check_floating("row_conv", x);
  internal::check_same_dtype("row_conv", x, w);
  if (x.rank() != 2 || w.rank() != 2 || w.dim(1) != x.dim(1))
    throw ShapeError("row_conv: expected x of [T, C] and w of [K, C], found " + x.to_string() + " and " + w.to_string());
  internal::check_row_offsets("row_conv", x, offsets);
  const Tensor rows = contiguous(x, stream);
  const Tensor taps = contiguous(w, stream);
  const Tensor out(x.dtype(), x.dims(), stream.memory());
  launch(
      TensorRefs<2>{&rows, &taps}, TensorRefs<1>{&out}, [=](KernelContext& context) { kernels.run(rows, taps, offsets, out, context); },
      stream);
  return out;
}

}  // namespace millrace
