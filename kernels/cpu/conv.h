// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <millrace/kernels/conv.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// x with its padding, as `conv` reads it: [N, C, before + L + after, …] with these strides, from element 0 of `elements` on. Two rows share the zeros
/// between them, and so do two planes, so that a padded place may be the place of two rows.
///
/// Where an axis has a stride, each phase of each axis is a plane of its own, and nothing is shared: place p of an axis of stride s is place p / s of
/// phase p % s. Neighbours in the output then see neighbours of a plane. Phases that no tap sees are left out.
struct PaddedPlanes {
  struct Axis {
    std::int64_t phases = 1;
    std::int64_t phase_step = 0;  ///< elements from a phase to the next
  };
  DDim strides;
  std::int64_t elements = 0;
  std::int64_t first = 0;  ///< the first element of x itself, where no axis has a stride
  bool split = false;      ///< whether an axis has a stride
  std::vector<Axis> axes;  ///< the spatial axes

  /// `dims`: the extents of x; `weights`: the extents of the weights.
  PaddedPlanes(const ConvDesc& desc, const DDim& dims, const DDim& weights);
  /// The distance from the element that the first tap sees to the element that tap `tap` along spatial axis `axis`, of `form`, sees.
  std::int64_t offset_of(int axis, const ConvDesc::Axis& form, std::int64_t tap) const {
    const Axis& of = axes[static_cast<std::size_t>(axis)];
    const std::int64_t place = tap * form.dilation;
    return split ? place / form.stride * strides[2 + axis] + place % form.stride * of.phase_step : place * strides[2 + axis];
  }
};

/// Whether `conv` needs room for PaddedPlanes: an axis has padding or a stride.
bool needs_planes(const ConvDesc& desc);

/// conv of kernels/conv.h: weights and bias row-major; operands of `steps` as cpu/conv_steps.h has them; out row-major [N, out_channels, …]; `room`: PaddedPlanes::elements elements where
/// `needs_planes`, else null. x is row-major, but where padding alone asks for room. `units`: the weights for units in the lanes (conv_units.h); null: places
/// are.
void conv(const ConvDesc& desc, const Tensor& x, const Tensor* room, const Tensor& weights, const Tensor* bias, const ConvSteps& steps,
          const Tensor& out, ThreadTeam& team, const ConvTaps* taps = nullptr, const Tensor* units = nullptr);

/// The taps that matter of contiguous weights, of which there is at least one; null where they save too little.
template <class T>
std::shared_ptr<const ConvTaps> find_taps(const ConvDesc& desc, const Tensor& weights);
extern template std::shared_ptr<const ConvTaps> find_taps<float>(const ConvDesc& desc, const Tensor& weights);
extern template std::shared_ptr<const ConvTaps> find_taps<double>(const ConvDesc& desc, const Tensor& weights);

}  // namespace millrace::cpu
