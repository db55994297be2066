// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/layer_norm_gradient.h>

#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/cpu/layer_norm_gradient.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/casts.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr internal::Implementations<const NormGradientCall&, std::int64_t> kernels{
    "layer_norm_gradient", {{"cuda", cuda::layer_norm_gradient}}, cpu::layer_norm_gradient};

}  // namespace

LayerNormGradient layer_norm_gradient(const Tensor& x, const Tensor& scale, const Tensor& g, int axis, double epsilon, StreamRef stream) {
  const char* name = "layer_norm_gradient";
  const int first = internal::checked_axis(name, axis, x.dims());
  if (x.dtype() != DType::f32 && x.dtype() != DType::f64)
    throw DTypeError("layer_norm_gradient: expected f32 or f64, found " + x.to_string());
  internal::check_dtype(name, "scale", scale, x.dtype());
  internal::check_dtype(name, "g", g, x.dtype());
  internal::check_dims(name, "g", g, x.dims());
  const DDim normed = x.dims().slice(first, x.rank());
  LayerNormGradient made{Tensor(x.dtype(), x.dims(), stream.memory()), Tensor(x.dtype(), x.dims(), stream.memory())};
  internal::check_device_places(name, stream, {&x, &scale, &g, &made.x});
  const Tensor scale_view = broadcast_view(scale, normed);
  const Tensor factors(x.dtype(), normed, stream.memory());
  const Tensor from = contiguous(x, stream), slope = contiguous(g, stream);
  launch(
      TensorRefs<3>{&from, &scale, &slope}, TensorRefs<2>{&made.x, &made.rows},
      [=](KernelContext& context) {
        internal::casts.run(scale_view, factors, context);
        kernels.run({from, factors, slope, epsilon, made.x, made.rows}, normed.elements(), context);
      },
      stream);
  return made;
}

}  // namespace millrace
