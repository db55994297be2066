// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <millrace/kernels/binary.h>

namespace millrace::cpu {

/// Elements side by side, or one that stands for all.
template <class T>
struct Span {
  const T* first = nullptr;
  bool repeats = false;
};

/// out[i] = a[i] ∘ b[i]; comparisons and logic give 1 or 0. `out` may be a or b. Bits as kernels/binary.h.
void binary_span(Binary kind, Span<float> a, Span<float> b, float* out, std::size_t count);
void binary_span(Binary kind, Span<double> a, Span<double> b, double* out, std::size_t count);

/// out[i] = condition[i] ≠ 0 ? a[i] : b[i].
void where_span(Span<float> condition, Span<float> a, Span<float> b, float* out, std::size_t count);
void where_span(Span<double> condition, Span<double> a, Span<double> b, double* out, std::size_t count);

}  // namespace millrace::cpu
