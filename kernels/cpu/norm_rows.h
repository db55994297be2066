// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <millrace/kernels/cpu/norm_kernels.h>
#include <millrace/kernels/cpu/unary_kernels.h>

/// softmax and its logarithm of up to sum_rows rows of n elements, in place: the one definition of their bits.
namespace millrace::cpu {

/// The greatest of n ≥ 1 elements; NaN wins.
template <class T>
T greatest(const T* x, std::int64_t n) {
  T most = x[0];
  for (std::int64_t i = 1; i < n; ++i)
    if (x[i] > most || x[i] != x[i]) most = x[i];
  return most;
}

template <class T>
void softmax_rows(T* const* rows, int count, std::int64_t n) {
  T sums[sum_rows];
  for (int r = 0; r < count; ++r) {
    const T most = greatest(rows[r], n);
    for (std::int64_t i = 0; i < n; ++i) rows[r][i] -= most;
    unary_run(Unary::exp, {}, rows[r], rows[r], static_cast<std::size_t>(n));
  }
  ordered_sums(rows, count, n, sums);
  for (int r = 0; r < count; ++r)
    for (std::int64_t i = 0; i < n; ++i) rows[r][i] /= sums[r];
}

/// `room`: count·n elements.
template <class T>
void log_softmax_rows(T* const* rows, int count, std::int64_t n, T* room) {
  T* powers[sum_rows] = {};
  T sums[sum_rows];
  for (int r = 0; r < count; ++r) {
    const T most = greatest(rows[r], n);
    powers[r] = room + r * n;
    for (std::int64_t i = 0; i < n; ++i) rows[r][i] -= most;
    unary_run(Unary::exp, {}, rows[r], powers[r], static_cast<std::size_t>(n));
  }
  ordered_sums(powers, count, n, sums);
  for (int r = 0; r < count; ++r) {
    const T norm = std::log(sums[r]);
    for (std::int64_t i = 0; i < n; ++i) rows[r][i] -= norm;
  }
}

}  // namespace millrace::cpu
