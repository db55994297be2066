// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include <millrace/tensor/kernel_floats.h>

namespace millrace::testing {

/// `x` as kernels read it and write it on this processor: where they take subnormals as zeros, the zero of its sign.
template <class T>
T flushed(T x) {
  return KernelFloats::flushes && std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(T{0}, x) : x;
}

}  // namespace millrace::testing
