// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::cpu {

/// The first arithmetic behind a convolution, which its kernels compute in registers: the steps `maximum` and `minimum` with one element each, or
/// `hard_swish`, with the bits of kernels/arithmetic.h.
template <class T>
struct ConvEnding {
  enum class Kind : std::uint8_t { none, bounds, hard_swish };
  Kind kind = Kind::none;
  T low = 0, high = 0;  ///< of bounds
};

}  // namespace millrace::cpu
