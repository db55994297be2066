// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace millrace::testing {

/// The sum of `x` in the chains of layer_norm.h.
template <class T>
T chained(const std::vector<T>& x) {
  T chains[16] = {};
  for (std::size_t i = 0; i < x.size(); ++i) chains[i % 16] += x[i];
  for (int half = 8; half > 0; half /= 2)
    for (int chain = 0; chain < half; ++chain) chains[chain] += chains[chain + half];
  return chains[0];
}

}  // namespace millrace::testing
