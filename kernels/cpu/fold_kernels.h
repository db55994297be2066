// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Sums and extremes of rows and of columns, by instruction set. No bit depends on how many rows or columns there are. T is float or double.
namespace millrace::cpu {

/// Rows that a caller hands over together: their chains of additions are independent, and one chain alone would leave the adder idle.
inline constexpr int sum_rows = 8;

/// The term of a sum: x, |x| or x².
enum class Term : std::uint8_t { element, magnitude, square };

/// sums[r] = Σ term(rows[r][i]) over the n elements of each of `count` rows, in the order of kernels/reduce.h.
void ordered_sums(Term term, const float* const* rows, std::int64_t count, std::int64_t n, float* sums);
void ordered_sums(Term term, const double* const* rows, std::int64_t count, std::int64_t n, double* sums);
template <class T>
void ordered_sums(const T* const* rows, std::int64_t count, std::int64_t n, T* sums) {
  ordered_sums(Term::element, rows, count, n, sums);
}

/// to[c] = Σ term(from[i·stride + c]) over `n` rows for each of `columns` columns, in the order of kernels/reduce.h.
void column_sums(Term term, const float* from, std::int64_t n, std::int64_t stride, std::int64_t columns, float* to);
void column_sums(Term term, const double* from, std::int64_t n, std::int64_t stride, std::int64_t columns, double* to);

/// The greatest or the least of the n elements of each of `count` rows: the last NaN if there is one, else the first of equal ones (0 and −0 are); −∞ or ∞
/// of none.
void extremes(bool greatest, const float* const* rows, std::int64_t count, std::int64_t n, float* to);
void extremes(bool greatest, const double* const* rows, std::int64_t count, std::int64_t n, double* to);
template <class T>
T extreme(bool greatest, const T* x, std::int64_t n) {
  T most;
  extremes(greatest, &x, 1, n, &most);
  return most;
}
/// The greatest or least element of each of `columns` columns of n rows.
void column_extremes(bool greatest, const float* from, std::int64_t n, std::int64_t stride, std::int64_t columns, float* to);
void column_extremes(bool greatest, const double* from, std::int64_t n, std::int64_t stride, std::int64_t columns, double* to);

/// The `count` ≤ n greatest or least of n elements, in order, with their places: NaN is the greatest, and of equal ones the first comes first.
void best_of_row(bool greatest, const float* x, std::int64_t n, std::int64_t count, float* values, std::int64_t* places);
void best_of_row(bool greatest, const double* x, std::int64_t n, std::int64_t count, double* values, std::int64_t* places);

/// The first or the last place of `value`, which is one of the n elements and no NaN.
std::int64_t place_of(float value, bool last, const float* x, std::int64_t n);
std::int64_t place_of(double value, bool last, const double* x, std::int64_t n);

/// places[c] = the first or the last row of n whose element of column c is values[c], for each of `columns` columns; n where there is none (a NaN).
void column_places(const float* values, bool last, const float* from, std::int64_t n, std::int64_t stride, std::int64_t columns,
                   std::int64_t* places);
void column_places(const double* values, bool last, const double* from, std::int64_t n, std::int64_t stride, std::int64_t columns,
                   std::int64_t* places);

}  // namespace millrace::cpu
