// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <millrace/kernels/arithmetic.h>
#include <millrace/kernels/conv.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

namespace cpu {
struct Int8Kernels;
}

/// Weights of a convolution of bytes with its units in the lanes, in the order of one instruction set.
struct ConvByteUnits {
  const cpu::Int8Kernels* kernels = nullptr;
  Tensor data;  ///< i8: see kernels/cpu/conv_byte_units.h
  Tensor sums;  ///< i32, of each unit
};

/// Weights of a convolution of bytes along one axis or two, packed once. Cheap to copy, shareable.
struct PackedConvInteger {
  ConvDesc desc;
  DDim dims;                        ///< [M, C / groups, K1 (, K2)]
  Tensor data;                      ///< i8: see kernels/cpu/conv_integer.h; empty where `units` is there
  std::vector<std::int32_t> sums;   ///< of the weights of each unit, less its zero
  std::vector<std::int32_t> zeros;  ///< of each unit; empty where all are 0
  std::vector<std::int32_t> added;  ///< to the sums of each unit; empty where all are 0
  std::optional<ConvByteUnits> units = std::nullopt;
  bool in_tiles = false;  ///< the order of `data`
};
/// `weights` i8 [M, C / groups, K1 (, K2)], contiguous, `zeros`: the 0 of those of each unit, `added`: numbers that are added to their
/// sums, M or none. `places`: those that an image gives, where they are known, else none; few places have units in the lanes. Bits do not depend on it. ShapeError, DTypeError.
PackedConvInteger pack_conv_integer(const ConvDesc& desc, const Tensor& weights, std::span<const std::int32_t> zeros,
                                    std::span<const std::int32_t> added = {}, std::optional<std::int64_t> places = std::nullopt);

/// The arithmetic behind the sums: steps in f32 (kernels/arithmetic.h) with operands of one element or of M, one for each unit; `to`: f32, u8 or i8, or, without steps, i32.
struct ConvIntegerSteps {
  std::vector<ArithmeticStep> steps;
  std::vector<Tensor> operands;
  DType to = DType::i32;
};

/// The convolution of conv.h of (x − zero) and (weights − zeros), plus `added`, whose sums are exact; beyond i32 they wrap: x u8 or i8 [N, C, L1 (, L2)], `zero` one element of its dtype. The padding is
/// `zero`. In host memory alone. ShapeError, DTypeError, ArgumentError.
Tensor conv_integer(const PackedConvInteger& weights, const Tensor& x, const Tensor& zero, const ConvIntegerSteps& steps, StreamRef stream);

/// Whether this machine has instructions for it: else products of floats are faster.
bool conv_integer_is_fast();

}  // namespace millrace
