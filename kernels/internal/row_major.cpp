// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/internal/row_major.h>

#include <millrace/kernels/cpu/copy.h>
#include <millrace/kernels/internal/casts.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/cuda/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace::internal {
namespace {

constexpr Implementations<const Tensor&, const Tensor&> copies{"copy", {{"cuda", cuda::copy}}, cpu::copy};

}  // namespace

void copy_into(const char* op, const Tensor& x, const Tensor& out, StreamRef stream) {
  check_device_places(op, stream, {&x, &out});
  launch(TensorRefs<1>{&x}, TensorRefs<1>{&out}, [x, out](KernelContext& context) { copies.run(x, out, context); }, stream);
}

Tensor row_major(const char* op, const Tensor& x, StreamRef stream) {
  Tensor out(x.dtype(), x.dims(), stream.memory());
  copy_into(op, x, out, stream);
  return out;
}

Tensor row_major_as(const char* op, const Tensor& x, DType dtype, StreamRef stream) {
  if (x.dtype() == dtype) return row_major(op, x, stream);
  Tensor out(dtype, x.dims(), stream.memory());
  check_device_places(op, stream, {&x, &out});
  launch(TensorRefs<1>{&x}, TensorRefs<1>{&out}, [x, out](KernelContext& context) { casts.run(x, out, context); }, stream);
  return out;
}

}  // namespace millrace::internal
