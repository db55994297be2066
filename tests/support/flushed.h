// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

namespace millrace::testing {

/// `x` as kernels read it and write it on this processor: where they take subnormals as zeros, the zero of its sign.
template <class T>
T flushed(T x) {
#if defined(__x86_64__) || defined(__aarch64__)
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(T{0}, x) : x;
#else
  return x;
#endif
}

}  // namespace millrace::testing
