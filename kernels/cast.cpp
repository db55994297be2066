// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cast.h>

#include <millrace/kernels/internal/casts.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/tensor/launch.h>

namespace millrace {

void cast(const Tensor& x, Tensor& out, StreamRef stream) {
  internal::check_device_places("cast", stream, {&x, &out});
  internal::check_dims("cast", "out", out, x.dims());
  launch(TensorRefs<1>{&x}, TensorRefs<1>{&out}, [x, out](KernelContext& context) { internal::casts.run(x, out, context); }, stream);
}

Tensor cast(const Tensor& x, DType dtype, StreamRef stream) {
  if (x.dtype() == dtype) return x;
  Tensor out(dtype, x.dims(), stream.memory());
  cast(x, out, stream);
  return out;
}

}  // namespace millrace
