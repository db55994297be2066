// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace millrace::cpu {

/// Whether no element is infinite or NaN.
template <class T>
bool all_finite(const T* x, std::int64_t count) {
  constexpr std::int64_t some = 4096;  // a loop over vectors
  for (std::int64_t begin = 0; begin < count; begin += some) {
    bool finite = true;
    for (std::int64_t i = begin; i < std::min(count, begin + some); ++i) finite &= std::abs(x[i]) <= std::numeric_limits<T>::max();
    if (!finite) return false;
  }
  return true;
}

}  // namespace millrace::cpu
