// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cumsum.h>

#include <millrace/kernels/cpu/cumsum.h>
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

}  // namespace millrace
