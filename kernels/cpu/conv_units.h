// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/conv.h>
#include <millrace/kernels/cpu/conv.h>
#include <millrace/kernels/cpu/packing.h>

namespace millrace::cpu {

/// The packed weights of one group of a convolution with the units in the lanes: [k, units].
PackedLayout conv_units_layout(DType dtype, std::int64_t k, std::int64_t units);

/// conv of cpu/conv.h on planes that are there, with the units in the lanes: `packed` has the layout above, group by group. `weights`: the extents of the
/// weights as they were given.
template <class T>
void conv_by_units(const ConvDesc& desc, const T* planes, const PaddedPlanes& form, const DDim& weights, const Tensor& packed,
                   const Tensor* bias, const ConvSteps& steps, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
