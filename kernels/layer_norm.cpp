// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/layer_norm.h>

#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/cpu/cast.h>
#include <millrace/kernels/cpu/layer_norm.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/widen.h>
#include <millrace/tensor/launch.h>

namespace millrace {

Tensor layer_norm(const Tensor& x, const Tensor& scale, const Tensor* bias, int axis, double epsilon, StreamRef stream) {
  const int first = internal::checked_axis("layer_norm", axis, x.dims());
  internal::check_floating("layer_norm", x);
  internal::check_dtype("layer_norm", "scale", scale, x.dtype());
  if (bias != nullptr) internal::check_dtype("layer_norm", "bias", *bias, x.dtype());
  const DDim normed = x.dims().slice(first, x.rank());
  const DType wide = internal::wide_dtype(x.dtype());
  Tensor out(x.dtype(), x.dims(), stream.memory());
  internal::check_device_places("layer_norm", stream, {&x, &scale, bias, &out});
  const bool has_bias = bias != nullptr;
  // Row-major copies in the wide dtype, stretched to the normalised axes.
  const Tensor scale_view = broadcast_view(scale, normed);
  const Tensor bias_view = has_bias ? broadcast_view(*bias, normed) : scale_view;
  const Tensor factors(wide, normed, stream.memory());
  const Tensor addends(wide, normed, stream.memory());
  launch(
      TensorRefs<3>{&x, &scale, bias}, TensorRefs<1>{&out},
      [=](ThreadTeam& team) {
        const bool there = team.device_queue() != nullptr;
        there ? cuda::cast(scale_view, factors, team) : cpu::cast(scale_view, factors, team);
        if (has_bias) there ? cuda::cast(bias_view, addends, team) : cpu::cast(bias_view, addends, team);
        const Tensor* last = has_bias ? &addends : nullptr;
        there ? cuda::layer_norm(x, factors, last, normed.rank(), epsilon, out, team)
              : cpu::layer_norm(x, factors, last, normed.rank(), epsilon, out, team);
      },
      stream);
  return out;
}

}  // namespace millrace
