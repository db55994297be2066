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

/// out[i] = a[i] ∘ b[i]; comparisons and logic give 1 or 0. `out` may be a or b.
template <class T>
using SpanFunction = void (*)(const Span<T>& a, const Span<T>& b, T* out, std::size_t count);
/// out[i] = condition[i] ≠ 0 ? a[i] : b[i].
template <class T>
using WhereFunction = void (*)(const Span<T>& condition, const Span<T>& a, const Span<T>& b, T* out, std::size_t count);

/// The function of `kind`, for the instruction set of this machine; T is float or double. Bits as kernels/binary.h.
template <class T>
SpanFunction<T> span_function(Binary kind);
template <>
SpanFunction<float> span_function<float>(Binary kind);
template <>
SpanFunction<double> span_function<double>(Binary kind);

template <class T>
WhereFunction<T> where_function();
template <>
WhereFunction<float> where_function<float>();
template <>
WhereFunction<double> where_function<double>();

}  // namespace millrace::cpu
