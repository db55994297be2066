// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cumsum.h>

#include <millrace/kernels/cpu/cumsum.h>
#include <millrace/kernels/cpu/cumsum_kernels.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr internal::Implementations<const Tensor&, int, bool, bool, const Tensor&> kernels{"cumsum", {{"cuda", cuda::cumsum}}, cpu::cumsum};

}  // namespace

Tensor cumsum(const Tensor& x, int axis, bool exclusive, bool reverse, StreamRef stream) {
  const int at = internal::checked_axis("cumsum", axis, x.dims());
  if (x.dtype() == DType::boolean) throw DTypeError("cumsum: expected numbers, found " + x.to_string());
  Tensor out(x.dtype(), x.dims(), stream.memory());
  internal::check_device_places("cumsum", stream, {&x, &out});
  launch(
      TensorRefs<1>{&x}, TensorRefs<1>{&out}, [=](KernelContext& context) { kernels.run(x, at, exclusive, reverse, out, context); },
      stream);
  return out;
}

RowFunction cumsum_rows(const CumsumRows& desc) {
  const auto run = [desc](const auto* from, auto* to) {
    const std::int64_t first = desc.reverse ? (desc.n - 1) * desc.inner : 0, step = desc.reverse ? -desc.inner : desc.inner;
    for (std::int64_t i = 0; i < desc.outer; ++i, from += desc.n * desc.inner, to += desc.n * desc.inner)
      cpu::running_columns(from + first, step, to + first, step, desc.n, desc.inner, desc.exclusive);
  };
  return [desc, run](std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows) {
    if (desc.n == 0) return;
    for (std::int64_t i = 0; i < rows; ++i)
      desc.dtype == DType::f64 ? run(inputs[0].row<const double>(i), outputs[0].row<double>(i))
                               : run(inputs[0].row<const float>(i), outputs[0].row<float>(i));
  };
}

}  // namespace millrace
