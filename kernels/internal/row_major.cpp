// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/internal/row_major.h>

#include <millrace/kernels/cpu/cast.h>
#include <millrace/kernels/cpu/copy.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/tensor/launch.h>

namespace millrace::internal {

void copy_into(const char* op, const Tensor& x, const Tensor& out, StreamRef stream) {
  check_device_places(op, stream, {&x, &out});
  launch(
      TensorRefs<1>{&x}, TensorRefs<1>{&out},
      [x, out](ThreadTeam& team) { team.device_queue() ? cuda::copy(x, out, team) : cpu::copy(x, out, team); }, stream);
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
  launch(
      TensorRefs<1>{&x}, TensorRefs<1>{&out},
      [x, out](ThreadTeam& team) { team.device_queue() ? cuda::cast(x, out, team) : cpu::cast(x, out, team); }, stream);
  return out;
}

}  // namespace millrace::internal
