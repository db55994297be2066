// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/copy.h>

#include <millrace/kernels/cpu/copy.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/tensor/launch.h>

namespace millrace {

void copy(const Tensor& x, Tensor& out, StreamRef stream) {
  internal::check_places("copy", stream, {&x, &out});
  internal::check_dtype("copy", "out", out, x.dtype());
  internal::check_dims("copy", "out", out, x.dims());
  launch(TensorRefs<1>{&x}, TensorRefs<1>{&out}, [x, out](ThreadTeam& team) { cpu::copy(x, out, team); }, stream);
}

Tensor contiguous(const Tensor& x, StreamRef stream) {
  return x.is_contiguous() ? x : clone(x, stream);
}

Tensor clone(const Tensor& x, StreamRef stream) {
  Tensor out(x.dtype(), x.dims(), stream.memory());
  copy(x, out, stream);
  return out;
}

}  // namespace millrace
