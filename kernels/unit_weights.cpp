// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/unit_weights.h>

#include <millrace/kernels/cpu/conv_units.h>
#include <millrace/kernels/cpu/depthwise.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/conv_dims.h>
#include <millrace/kernels/internal/narrow_conv.h>
#include <millrace/kernels/internal/run_conv.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// Units of a group that fill a vector.
constexpr std::int64_t vector = 16;
/// Vectors of places are full from so many on.
constexpr std::int64_t most = 64;

template <class T>
void pack_groups(const cpu::PackedLayout& layout, const Tensor& weights, const Tensor& packed, std::int64_t groups, ThreadTeam& team) {
  for (std::int64_t group = 0; group < groups; ++group)
    cpu::pack_all(layout, static_cast<const T*>(weights.raw()) + group * layout.columns * layout.k, 1, layout.k,
                  static_cast<T*>(packed.raw_mutable()) + group * layout.elements(), team);
}

}  // namespace

bool few_places(std::int64_t units, std::int64_t images, std::int64_t places) {
  const std::int64_t lanes = (units + vector - 1) / vector * vector;
  return places <= most && images <= most && images * places * lanes <= most * units;
}

std::optional<UnitWeights> pack_units(const ConvDesc& desc, const Tensor& weights, StreamRef stream) {
  const bool floats = weights.dtype() == DType::f32 || weights.dtype() == DType::f64;
  const bool fits = floats && weights.rank() == static_cast<int>(desc.axes.size()) + 2 && weights.rank() > 2 && weights.elements() > 0 &&
                    desc.groups > 0 && weights.dim(0) % desc.groups == 0 && weights.dim(0) / desc.groups >= vector;
  if (!fits || cpu::is_depthwise(desc, weights)) return std::nullopt;
  internal::check_device_places("conv", stream, {&weights});
  const Tensor given = weights.is_contiguous() ? weights : weights.copy_to(CpuPlace{});
  const cpu::PackedLayout layout =
      cpu::conv_units_layout(weights.dtype(), weights.elements() / weights.dim(0), weights.dim(0) / desc.groups);
  const Tensor packed(weights.dtype(), DDim{checked_mul(layout.elements(), desc.groups)}, stream.memory());
  launch(
      TensorRefs<1>{&given}, TensorRefs<1>{&packed},
      [=, groups = desc.groups](ThreadTeam& team) {
        if (given.dtype() == DType::f64) return pack_groups<double>(layout, given, packed, groups, team);
        pack_groups<float>(layout, given, packed, groups, team);
      },
      stream);
  return UnitWeights{packed, given};
}

Tensor conv(const ConvDesc& desc, const Tensor& x, const UnitWeights& weights, const Tensor* bias, StreamRef stream,
            const ConvSteps& steps) {
  if (internal::is_narrow(x.dtype()))
    return internal::narrow_conv(x, bias, stream, steps,
                                 [&](const Tensor& rows, const Tensor* addend) { return conv(desc, rows, weights, addend, stream); });
  const DDim dims = internal::conv_dims(desc, x, weights.weights, bias, stream);
  std::int64_t places = 1;
  for (int axis = 2; axis < dims.rank(); ++axis) places = checked_mul(places, dims[axis]);
  if (!few_places(dims[1] / desc.groups, dims[0], places)) return conv(desc, x, weights.weights, bias, stream, nullptr, steps);
  return internal::run_conv(desc, x, weights.weights, &weights.packed, bias, stream, nullptr, steps, dims);
}

}  // namespace millrace
