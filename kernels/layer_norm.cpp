// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/layer_norm.h>

#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/cpu/layer_norm.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/casts.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/kernels/internal/widen.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr internal::Implementations<const Tensor&, const Tensor&, const Tensor*, int, double, const Tensor&> kernels{
    "layer_norm", {{"cuda", cuda::layer_norm}}, cpu::layer_norm};

/// Row-major scratch in the dtype of the arithmetic.
Tensor widened(const Tensor& from, KernelContext& context) {
  Tensor made(internal::wide_dtype(from.dtype()), from.dims(), context.workspace());
  internal::casts.run(from, made, context);
  return made;
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& scale, const Tensor* bias, int axis, double epsilon, StreamRef stream) {
  const int first = internal::checked_axis("layer_norm", axis, x.dims());
  internal::check_floating("layer_norm", x);
  internal::check_dtype("layer_norm", "scale", scale, x.dtype());
  if (bias != nullptr) internal::check_dtype("layer_norm", "bias", *bias, x.dtype());
  const DDim normed = x.dims().slice(first, x.rank());
  Tensor out(x.dtype(), x.dims(), stream.memory());
  internal::check_device_places("layer_norm", stream, {&x, &scale, bias, &out});
  const bool has_bias = bias != nullptr;
  const Tensor scale_view = broadcast_view(scale, normed);
  const Tensor bias_view = has_bias ? broadcast_view(*bias, normed) : scale_view;
  launch(
      TensorRefs<3>{&x, &scale, bias}, TensorRefs<1>{&out},
      [=, axes = normed.rank()](KernelContext& context) {
        const Tensor factors = widened(scale_view, context);
        const Tensor addends = has_bias ? widened(bias_view, context) : factors;
        kernels.run(x, factors, has_bias ? &addends : nullptr, axes, epsilon, out, context);
      },
      stream);
  return out;
}

}  // namespace millrace
