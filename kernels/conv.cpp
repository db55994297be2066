// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/conv.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include <millrace/kernels/cpu/conv.h>
#include <millrace/kernels/cpu/depthwise.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/conv_dims.h>
#include <millrace/kernels/internal/conv_steps.h>
#include <millrace/kernels/internal/narrow_conv.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/kernels/internal/run_conv.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/launch.h>

namespace millrace {

std::int64_t ConvDesc::out_extent(const Axis& axis, std::int64_t extent, std::int64_t kernel) {
  const std::int64_t padded = checked_add(extent, checked_add(axis.before, axis.after));
  const std::int64_t span = checked_add(checked_mul(axis.dilation, kernel - 1), std::int64_t{1});
  return padded < span ? 0 : (padded - span) / axis.stride + 1;
}

DDim internal::conv_dims(const ConvDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* bias, StreamRef stream) {
  if (x.dtype() != DType::f32 && x.dtype() != DType::f64) throw DTypeError("conv: expected f32 or f64 for x, found " + x.to_string());
  internal::check_same_dtype("conv", x, weights);
  const int rank = static_cast<int>(desc.axes.size()) + 2;
  if (rank < 3 || x.rank() != rank || weights.rank() != rank)
    throw ShapeError("conv: expected x [N, C, L1, …] and weights [M, C/groups, K1, …] of " + std::to_string(rank) + " axes, found " +
                     x.to_string() + " and " + weights.to_string());
  for (const ConvDesc::Axis& axis : desc.axes)
    if (axis.stride < 1 || axis.dilation < 1 || axis.before < 0 || axis.after < 0)
      throw ArgumentError("conv: expected strides and dilations of 1 or more and pads of 0 or more, found " + std::to_string(axis.stride) +
                          ", " + std::to_string(axis.dilation) + ", " + std::to_string(axis.before) + " and " + std::to_string(axis.after));
  if (desc.groups < 1 || weights.dim(0) % desc.groups != 0 || x.dim(1) != checked_mul(weights.dim(1), desc.groups))
    throw ShapeError("conv: expected channels that " + std::to_string(desc.groups) + " groups share, found " + x.to_string() + " and " +
                     weights.to_string());
  if (bias != nullptr) {
    internal::check_same_dtype("conv", x, *bias);
    internal::check_dims("conv", "bias", *bias, DDim{weights.dim(0)});
  }
  internal::check_host("conv", stream, x);
  DDim dims{x.dim(0), weights.dim(0)};
  for (int axis = 2; axis < rank; ++axis)
    dims = dims.inserted(axis, ConvDesc::out_extent(desc.axes[static_cast<std::size_t>(axis - 2)], x.dim(axis), weights.dim(axis)));
  return dims;
}

namespace {

/// An axis of one element under one tap, beside others; −1: none.
int idle_axis(const ConvDesc& desc, const Tensor& x, const Tensor& weights) {
  for (std::size_t i = 0; i < desc.axes.size() && desc.axes.size() > 1; ++i) {
    const int axis = static_cast<int>(i) + 2;
    if (x.dim(axis) == 1 && weights.dim(axis) == 1 && desc.axes[i].before == 0 && desc.axes[i].after == 0) return axis;
  }
  return -1;
}

/// `steps` fit (internal/conv_steps.h).
Tensor run_fitted(const ConvDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* packed, const Tensor* bias, StreamRef stream,
                  const std::shared_ptr<const ConvTaps>& taps, ConvSteps steps, const DDim& dims) {
  if (const int axis = idle_axis(desc, x, weights); axis >= 0) {  // rows of one element would leave vectors empty
    ConvDesc others = desc;
    others.axes.erase(others.axes.begin() + (axis - 2));
    for (std::optional<Tensor>& operand : steps.operands)
      if (operand && operand->dims() == dims) operand = operand->select(axis, 0);
    return run_fitted(others, x.select(axis, 0), weights.select(axis, 0), packed, bias, stream, taps, std::move(steps), dims.erased(axis))
        .reshape(dims);
  }
  Tensor out(x.dtype(), dims, stream.memory());
  const Tensor rows = weights.is_contiguous() ? weights : internal::row_major("conv", weights, stream);
  const bool has_bias = bias != nullptr;
  const Tensor addend = has_bias ? (bias->is_contiguous() ? *bias : internal::row_major("conv", *bias, stream)) : rows;
  const bool by_units = packed != nullptr;
  const Tensor units = by_units ? *packed : rows;
  const auto start = [&](const Tensor& read, auto kernel) {
    internal::check_device_places("conv", stream, {&read, &rows, &units, &addend, &out});
    TensorRefs<4 + most_operands> reads{&read, &rows, &units, &addend};
    for (std::size_t i = 0; i < steps.operands.size(); ++i)
      if (steps.operands[i]) reads[i + 4] = &*steps.operands[i];
    launch(reads, TensorRefs<1>{&out}, std::move(kernel), stream);
    return out;
  };
  if (cpu::is_depthwise(desc, weights))
    return start(x, [=](KernelContext& context) { cpu::depthwise(desc, x, rows, has_bias ? &addend : nullptr, steps, out, context); });
  if (out.elements() == 0) return start(x, [](ThreadTeam&) {});
  if (!cpu::needs_planes(desc)) {
    const Tensor own = x.is_contiguous() ? x : internal::row_major("conv", x, stream);
    return start(own, [=](ThreadTeam& team) {
      cpu::conv(desc, own, nullptr, rows, has_bias ? &addend : nullptr, steps, out, team, taps.get(), by_units ? &units : nullptr);
    });
  }
  const cpu::PaddedPlanes planes(desc, x.dims(), rows.dims());
  const Tensor own = !planes.split || x.is_contiguous() ? x : internal::row_major("conv", x, stream);
  const Tensor room(x.dtype(), DDim{planes.elements}, stream.memory());
  room.storage()->mark_written();
  return start(own, [=](ThreadTeam& team) {
    cpu::conv(desc, own, &room, rows, has_bias ? &addend : nullptr, steps, out, team, taps.get(), by_units ? &units : nullptr);
  });
}

}  // namespace

std::shared_ptr<const ConvTaps> find_taps(const ConvDesc& desc, const Tensor& weights) {
  const bool fits = weights.rank() == static_cast<int>(desc.axes.size()) + 2 && weights.rank() > 2 && weights.elements() > 0 &&
                    desc.groups > 0 && weights.dim(0) % desc.groups == 0 && !cpu::is_depthwise(desc, weights);
  if (!fits) return nullptr;
  const Tensor given = weights.is_contiguous() ? weights : weights.copy_to(CpuPlace{});
  if (weights.dtype() == DType::f64) return cpu::find_taps<double>(desc, given);
  return weights.dtype() == DType::f32 ? cpu::find_taps<float>(desc, given) : nullptr;
}

Tensor take_steps(const ConvSteps& steps, const Tensor& made, StreamRef stream) {
  std::array<const Tensor*, most_operands> operands{};
  for (std::size_t i = 0; i < steps.operands.size(); ++i) operands[i] = steps.operands[i] ? &*steps.operands[i] : &made;
  return arithmetic(steps.steps, made, std::span(operands).first(steps.operands.size()), stream);
}

Tensor conv(const ConvDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* bias, StreamRef stream,
            const std::shared_ptr<const ConvTaps>& taps, const ConvSteps& steps) {
  if (internal::is_narrow(x.dtype())) {
    if (weights.dtype() != DType::f32) internal::check_same_dtype("conv", x, weights);
    return internal::narrow_conv(x, bias, stream, steps, [&](const Tensor& rows, const Tensor* addend) {
      return conv(desc, rows, cast(weights, DType::f32, stream), addend, stream, taps);
    });
  }
  return internal::run_conv(desc, x, weights, nullptr, bias, stream, taps, steps, internal::conv_dims(desc, x, weights, bias, stream));
}

Tensor internal::run_conv(const ConvDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* packed, const Tensor* bias,
                          StreamRef stream, const std::shared_ptr<const ConvTaps>& taps, const ConvSteps& steps, const DDim& dims) {
  if (std::optional<ConvSteps> fits = internal::fitted_steps(steps, x.dtype(), dims, stream))
    return run_fitted(desc, x, weights, packed, bias, stream, taps, std::move(*fits), dims);
  return take_steps(steps, run_fitted(desc, x, weights, packed, bias, stream, taps, {}, dims), stream);
}

}  // namespace millrace
