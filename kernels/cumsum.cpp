// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cumsum.h>

#include <millrace/kernels/cpu/cumsum.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/tensor/launch.h>

namespace millrace {

Tensor cumsum(const Tensor& x, int axis, bool exclusive, bool reverse, StreamRef stream) {
  const int at = internal::checked_axis("cumsum", axis, x.dims());
  if (x.dtype() == DType::boolean) throw DTypeError("cumsum: expected numbers, found " + x.to_string());
  Tensor out(x.dtype(), x.dims(), stream.memory());
  internal::check_device_places("cumsum", stream, {&x, &out});
  launch(
      TensorRefs<1>{&x}, TensorRefs<1>{&out},
      [=](ThreadTeam& team) {
        team.device_queue() ? cuda::cumsum(x, at, exclusive, reverse, out, team) : cpu::cumsum(x, at, exclusive, reverse, out, team);
      },
      stream);
  return out;
}

}  // namespace millrace
