// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/winograd.h>

#include <cmath>

#include <millrace/kernels/cpu/winograd.h>
#include <millrace/kernels/cpu/winograd_kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/conv_dims.h>
#include <millrace/kernels/internal/conv_steps.h>
#include <millrace/kernels/internal/narrow_conv.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// Channels and units from which on the transforms are a small part of the products.
constexpr std::int64_t least_k = 24, least_units = 8;
constexpr float largest_weight = 0x1p60f;

}  // namespace

bool fits_winograd(const ConvDesc& desc, DType dtype, const DDim& weights) {
  return dtype == DType::f32 && desc.groups == 1 && desc.axes.size() == 2 && desc.axes[0].stride == 1 && desc.axes[1].stride == 1 &&
         desc.axes[0].dilation == 1 && weights.rank() == 4 && weights[2] == 3 && weights[1] * weights[3] >= least_k &&
         weights[0] >= least_units;
}

std::optional<WinogradWeights> transform_winograd(const ConvDesc& desc, const Tensor& weights) {
  if (!fits_winograd(desc, weights.dtype(), weights.dims())) return std::nullopt;
  const Tensor given = weights.is_contiguous() ? weights : weights.copy_to(CpuPlace{});
  const std::int64_t units = weights.dim(0), channels = weights.dim(1), taps = weights.dim(3), all = units * channels * taps;
  const float* const from = given.data<float>();
  for (std::int64_t i = 0; i < given.elements(); ++i)
    if (!(std::abs(from[i]) <= largest_weight)) return std::nullopt;
  Tensor made(DType::f32, DDim{cpu::winograd_sums, units, channels * taps});
  float* const to = made.mutable_data<float>();
  for (std::int64_t channel = 0; channel < units * channels; ++channel)
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const float* const w = from + channel * 3 * taps + tap;
      const double a = w[0], b = w[taps], c = w[2 * taps];
      const double taken[cpu::winograd_sums] = {
          a / 4, -(a + b + c) / 6, -(a - b + c) / 6, (a + 2 * b + 4 * c) / 24, (a - 2 * b + 4 * c) / 24, c};
      for (int j = 0; j < cpu::winograd_sums; ++j) to[j * all + channel * taps + tap] = static_cast<float>(taken[j]);
    }
  return WinogradWeights{std::move(made), given};
}

Tensor conv(const ConvDesc& desc, const Tensor& x, const WinogradWeights& weights, const Tensor* bias, StreamRef stream,
            const ConvSteps& steps) {
  if (internal::is_narrow(x.dtype()))
    return internal::narrow_conv(x, bias, stream, steps,
                                 [&](const Tensor& rows, const Tensor* addend) { return conv(desc, rows, weights, addend, stream); });
  const DDim dims = internal::conv_dims(desc, x, weights.weights, bias, stream);
  const std::optional<ConvSteps> fits = internal::fitted_steps(steps, x.dtype(), dims, stream);
  if (!fits) return take_steps(steps, conv(desc, x, weights, bias, stream), stream);
  Tensor out(x.dtype(), dims, stream.memory());
  const Tensor own = x.is_contiguous() ? x : internal::row_major("conv", x, stream);
  const bool has_bias = bias != nullptr;
  const Tensor addend = has_bias ? (bias->is_contiguous() ? *bias : internal::row_major("conv", *bias, stream)) : weights.weights;
  internal::check_device_places("conv", stream, {&own, &weights.weights, &weights.transformed, &addend, &out});
  TensorRefs<4 + most_operands> reads{&own, &weights.weights, &weights.transformed, &addend};
  for (std::size_t i = 0; i < fits->operands.size(); ++i)
    if (fits->operands[i]) reads[i + 4] = &*fits->operands[i];
  launch(
      reads, TensorRefs<1>{&out},
      [=, held = *fits](const KernelContext& context) { cpu::conv(desc, own, weights, has_bias ? &addend : nullptr, held, out, context); },
      stream);
  return out;
}

}  // namespace millrace
