// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/pointwise.h>

#include <algorithm>
#include <utility>

#include <millrace/kernels/cpu/conv1d.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/conv_dims.h>
#include <millrace/kernels/internal/conv_steps.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// Units of a group that fill a vector.
constexpr std::int64_t vector = 16;
/// Vectors of places are full from so many on.
constexpr std::int64_t many = 64;

/// relu as the first of the steps, unless one of them reads the result behind it. False there.
bool take_relu(ConvSteps& steps) {
  if (!std::all_of(steps.operands.begin(), steps.operands.end(), [](const auto& operand) { return operand.has_value(); })) return false;
  steps.steps.insert(steps.steps.begin(), ArithmeticStep::relu);
  return true;
}

}  // namespace

bool few_places(std::int64_t units, std::int64_t images, std::int64_t places) {
  const std::int64_t lanes = (units + vector - 1) / vector * vector;
  return places < many && images < many && images * places < many && images * places * lanes < many * units;
}

std::optional<PointwiseWeights> pack_pointwise(const ConvDesc& desc, const Tensor& weights, StreamRef stream) {
  const bool one_tap = weights.rank() == static_cast<int>(desc.axes.size()) + 2 && weights.rank() > 2 && desc.groups > 0 &&
                       weights.elements() > 0 && weights.elements() == weights.dim(0) * weights.dim(1);
  const bool floats = weights.dtype() == DType::f32 || weights.dtype() == DType::f64;
  const bool plain = std::all_of(desc.axes.begin(), desc.axes.end(), [](const ConvDesc::Axis& axis) {
    return axis.stride == 1 && axis.dilation >= 1 && axis.before == 0 && axis.after == 0;
  });
  if (!one_tap || !floats || !plain || weights.dim(0) % desc.groups != 0 || weights.dim(0) / desc.groups < vector) return std::nullopt;
  const Tensor given = weights.is_contiguous() ? weights : weights.copy_to(CpuPlace{});
  Conv1dDesc form;
  form.in_channels = checked_mul(weights.dim(1), desc.groups);
  form.out_channels = weights.dim(0);
  form.groups = desc.groups;
  form.dtype = weights.dtype();
  const Conv1dPlan plan = make_conv1d(form);
  return PointwiseWeights{plan, pack(plan, given.reshape(DDim{weights.dim(0), weights.dim(1), 1}), stream), given};
}

Tensor conv(const ConvDesc& desc, const Tensor& x, const PointwiseWeights& weights, const Tensor* bias, StreamRef stream,
            const ConvSteps& steps) {
  const DDim dims = internal::conv_dims(desc, x, weights.weights, bias, stream);
  std::int64_t places = 1;
  for (int axis = 2; axis < dims.rank(); ++axis) places = checked_mul(places, dims[axis]);
  if (!few_places(dims[1] / desc.groups, dims[0], places)) return conv(desc, x, weights.weights, bias, stream, nullptr, steps);
  std::optional<ConvSteps> fits = internal::fitted_steps(steps, x.dtype(), dims, stream);
  if (!fits || (desc.relu && !take_relu(*fits))) return take_steps(steps, conv(desc, x, weights, bias, stream), stream);
  for (std::optional<Tensor>& operand : fits->operands)
    if (operand && operand->dims() == dims) operand = operand->reshape(DDim{dims[0], dims[1], places});
  const Tensor own = (x.is_contiguous() ? x : internal::row_major("conv", x, stream)).reshape(DDim{x.dim(0), x.dim(1), places});
  const Tensor out(x.dtype(), DDim{dims[0], dims[1], places}, stream.memory());
  const bool has_bias = bias != nullptr;
  const Tensor addend = has_bias ? (bias->is_contiguous() ? *bias : internal::row_major("conv", *bias, stream)) : own;
  const Tensor packed = weights.packed.data;
  internal::check_device_places("conv", stream, {&own, &packed, &addend, &out});
  TensorRefs<3 + most_operands> reads{&own, &packed, &addend};
  for (std::size_t i = 0; i < fits->operands.size(); ++i)
    if (fits->operands[i]) reads[i + 3] = &*fits->operands[i];
  launch(
      reads, TensorRefs<1>{&out},
      [=, plan = weights.plan, held = std::move(*fits)](KernelContext& context) {
        cpu::conv1d(plan, own, packed, has_bias ? &addend : nullptr, held, out, context);
      },
      stream);
  return out.reshape(dims);
}

}  // namespace millrace
