// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/fill.h>

#include <cmath>
#include <string>

#include <millrace/kernels/cast.h>
#include <millrace/kernels/cpu/cast.h>
#include <millrace/kernels/cpu/fill.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr internal::Implementations<const Tensor&, const Tensor&> fill_kernels{"fill", {{"cuda", cuda::fill}}, cpu::fill};
constexpr internal::Implementations<double, double, const Tensor&> arange_kernels{"arange", {{"cuda", cuda::arange}}, cpu::arange};

}  // namespace

void fill(Tensor& out, double value, StreamRef stream) {
  internal::check_device_places("fill", stream, {&out});
  ThreadTeam alone(1);
  Tensor element(out.dtype(), DDim{});
  cpu::cast(Tensor::scalar(value), element, alone);
  launch(TensorRefs<0>{}, TensorRefs<1>{&out}, [element, out](KernelContext& context) { fill_kernels.run(element, out, context); }, stream);
}

Tensor full(const DDim& dims, double value, DType dtype, StreamRef stream) {
  Tensor out(dtype, dims, stream.memory());
  fill(out, value, stream);
  return out;
}

Tensor zeros(const DDim& dims, DType dtype, StreamRef stream) { return full(dims, 0, dtype, stream); }
Tensor ones(const DDim& dims, DType dtype, StreamRef stream) { return full(dims, 1, dtype, stream); }

Tensor arange(double start, double limit, double step, DType dtype, StreamRef stream) {
  if (step == 0 || dtype == DType::boolean)
    throw ArgumentError("arange: expected a step other than 0 and a number, found step " + std::to_string(step) + " and " +
                        std::string(name_of(dtype)));
  const double count = std::ceil((limit - start) / step);
  if (!(count < 9e18))
    throw ArgumentError("arange: expected finite bounds, found " + std::to_string(start) + " to " + std::to_string(limit));
  Tensor out(dtype, DDim{count > 0 ? static_cast<std::int64_t>(count) : 0}, stream.memory());
  internal::check_device_places("arange", stream, {&out});
  launch(
      TensorRefs<0>{}, TensorRefs<1>{&out}, [start, step, out](KernelContext& context) { arange_kernels.run(start, step, out, context); },
      stream);
  return out;
}

Tensor arange(std::int64_t count, DType dtype, StreamRef stream) { return arange(0, static_cast<double>(count), 1, dtype, stream); }

}  // namespace millrace
