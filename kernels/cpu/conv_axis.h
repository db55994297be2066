// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/conv.h>

namespace millrace::cpu {

/// One spatial axis of a convolution of one call: how the taps and the places of input and output lie.
struct ConvAxis {
  std::int64_t extent, out, taps, stride, dilation, before;

  /// `given`: the extent of the input; `kernel`: the taps of the weights.
  ConvAxis(const ConvDesc::Axis& of, std::int64_t given, std::int64_t kernel)
      : extent(given),
        out(ConvDesc::out_extent(of, given, kernel)),
        taps(kernel),
        stride(of.stride),
        dilation(of.dilation),
        before(of.before) {}
};

}  // namespace millrace::cpu
