// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <millrace/tensor/lod.h>
#include <millrace/kernels/cuda/with_cuda/element.cuh>
#include <millrace/kernels/cuda/with_cuda/functions.cuh>

/// Functions that folds and kernels over whole sequences share.
namespace millrace::cuda {

using Indices = std::vector<std::int64_t>;

/// The sum of value(0) … value(n − 1) in that order, started anew every 512; the parts are added in order.
template <class T, class F>
MILLRACE_HD T ordered_sum(std::int64_t n, F value) {
  constexpr std::int64_t k_block = 512;
  T total{};
  for (std::int64_t begin = 0; begin < n; begin += k_block) {
    const std::int64_t end = least_of(n, begin + k_block);
    T part{};
    for (std::int64_t i = begin; i < end; ++i) part += value(i);
    total = begin == 0 ? part : total + part;
  }
  return total;
}

/// The greatest of value(0) … value(n − 1), n ≥ 1; NaN wins.
template <class T, class F>
MILLRACE_HD T greatest_value(std::int64_t n, F value) {
  T most = value(0);
  for (std::int64_t i = 1; i < n; ++i) {
    const T v = value(i);
    if (v > most || v != v) most = v;
  }
  return most;
}

template <class T>
MILLRACE_HD T infinite() {
  return std::numeric_limits<T>::infinity();
}
template <class T>
MILLRACE_HD bool is_infinite(T x) {
  return x == infinite<T>() || x == -infinite<T>();
}

/// A matrix of any strides.
template <class T>
struct Matrix {
  Elements<T> data;
  std::int64_t columns, row_step, step;
  MILLRACE_HD T at(std::int64_t row, std::int64_t column) const { return data.get(row * row_step + column * step); }
};
template <class T>
Matrix<T> matrix(const Tensor& x) {
  return {elements<T>(x), x.dim(1), x.strides()[0], x.strides()[1]};
}

/// Integers of [rows] or [rows, 1].
struct Column {
  Elements<std::int64_t> data;
  std::int64_t step;
  MILLRACE_HD std::int64_t at(std::int64_t row) const { return data.get(row * step); }
};
inline Column column(const Tensor& x) { return {elements<std::int64_t>(x), x.rank() == 0 ? 0 : x.strides()[0]}; }

inline std::int64_t* writable(const Tensor& x) { return static_cast<std::int64_t*>(x.raw_mutable()); }

/// Where the sequences of the last level begin and end, in rows.
inline Indices bounds_of(const LoD& lod) {
  const auto all = lod.offsets(lod.depth() - 1);
  return {all.begin(), all.end()};
}

/// f(T{}) with the arithmetic of a dtype of floats.
template <class F>
void visit_floats(DType dtype, F&& f) {
  if (dtype == DType::f64) return f(double{});
  f(float{});
}

}  // namespace millrace::cuda
