// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/conv_integer.h>
#include <millrace/kernels/cpu/conv_integer.h>
#include <millrace/tensor/kernel_context.h>

namespace millrace::cpu {

/// Whether units in the lanes are faster where an image gives so many places: for few places, whose rows leave vectors empty, and many units. Kernels that gather (int8_kernels.h) keep
/// places in the lanes.
bool takes_byte_units(const ConvIntegerForm& form, bool has_zeros, std::optional<std::int64_t> places);

/// The weights i8 [M, C / groups, K1 (, K2)] in the order of the products of int8_kernels.h, group by group: k is [tap][channel].
ConvByteUnits pack_byte_units(const ConvDesc& desc, const Tensor& weights);

/// conv_integer with the units in the lanes, by `weights.units`, which are there: the bits of cpu/conv_integer.h.
void conv_byte_units(const PackedConvInteger& weights, const Tensor& x, std::int32_t zero, const ConvIntegerSteps& steps, const Tensor& out,
                     KernelContext& context);

}  // namespace millrace::cpu
