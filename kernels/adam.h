// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace {

/// The numbers of one step of Adam (Kingma and Ba 2015) or AdamW (Loshchilov and Hutter 2019).
template <class T>
struct AdamNumbers {
  T beta1, beta2;
  T rest1, rest2;  ///< 1 − beta1, 1 − beta2
  T stride;        ///< learning rate / (1 − beta1^t)
  T root;          ///< sqrt(1 − beta2^t)
  T epsilon;
  T decay;         ///< Adam: added to the slope, times the weight
  T shrink;        ///< AdamW: 1 − learning rate · decay
  bool decoupled;  ///< AdamW
};

/// For each of `count` elements, each operation rounded once, in T:
///
///   w = w·shrink (AdamW);  s = g (AdamW) or g + decay·w;  m = beta1·m + rest1·s;  v = beta2·v + rest2·(s·s)
///   w = w − stride·(m / (sqrt(v) / root + epsilon))
///
/// All on the host, side by side, not overlapping. An element's result depends on that element alone.
void adam_update(const AdamNumbers<float>& numbers, const float* g, float* w, float* m, float* v, std::int64_t count);
void adam_update(const AdamNumbers<double>& numbers, const double* g, double* w, double* m, double* v, std::int64_t count);

}  // namespace millrace
