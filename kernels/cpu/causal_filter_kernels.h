// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::cpu {

/// Elements side by side: out[i] = Σ_j w_j·x_j[i] (+ b), products rounded, in the order of j. `each`: elements have weights and a bias of their own, else one
/// number for all of them. T is float or double.
template <class T>
struct FilterCall {
  const T* const* taps = nullptr;  ///< x_j
  const T* weights = nullptr;      ///< w_0
  std::int64_t weight_step = 0;    ///< from w_j to the next
  const T* bias = nullptr;         ///< or null
  T* out = nullptr;
  std::int64_t count = 0;
  std::int64_t tap_count = 0;
  bool each = false;
};
void filter_run(const FilterCall<float>& call);
void filter_run(const FilterCall<double>& call);

}  // namespace millrace::cpu
