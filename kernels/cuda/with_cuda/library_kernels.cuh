// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include <millrace/kernels/cuda/with_cuda/element.cuh>

/// The device code of library_products.cu beside the library's own kernels.
namespace millrace::cuda::library {

/// The operations behind the sums, as in gemm.cu.
template <class T>
struct Finish {
  const T* sums;
  Elements<T> out, bias;
  std::int64_t n, out_row, out_column;
  T alpha, beta;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t column = i % n;
    const std::int64_t at = i / n * out_row + column * out_column;
    T value = sums[i];
    if (alpha != T{1}) value = alpha * value;
    if (beta != T{0}) value = value + (beta == T{1} ? out.get(at) : beta * out.get(at));
    if (bias.data != nullptr) value = value + bias.get(column);
    out.set(at, value);
  }
};

/// Numbers between 2^-5 and 2 of either sign, by their place. With `odd`, rows of signed zeros, of subnormals, and with an infinity.
template <class T>
struct Drawn {
  Elements<T> to;
  std::int64_t columns;
  std::uint64_t seed;
  bool odd;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::uint64_t x = static_cast<std::uint64_t>(i) + seed;
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9u;
    x ^= x >> 32;
    T value = T{1} + static_cast<T>(x >> 8 & 0xFFFFFF) / static_cast<T>(1 << 24);
    value /= static_cast<T>(1 << (x >> 33) % 6);
    if ((x & 1) != 0) value = -value;
    const std::int64_t row = i / columns % 64;
    if (odd && row == 5) value = (x & 1) != 0 ? -T{0} : T{0};
    if (odd && row == 9) value *= least();
    if (odd && row == 13 && i % columns == 3) value = (x & 1) != 0 ? -infinity() : infinity();
    to.set(i, value);
  }
  /// Below the least normal number of the dtype, when it multiplies what is drawn.
  MILLRACE_HD T least() const {
    if (to.dtype == DType::f16) return static_cast<T>(1.0 / (1 << 15));
    return std::numeric_limits<T>::min();
  }
  MILLRACE_HD static T infinity() { return std::numeric_limits<T>::infinity(); }
};

/// Whether anything differs; leaves `found` as nothing that a product gives.
struct Compare {
  std::uint16_t* found;
  const std::uint16_t* wanted;  // or null: nothing to compare with
  std::uint32_t* differs;
  MILLRACE_HD void operator()(std::int64_t i) const {
    if (wanted != nullptr && found[i] != wanted[i]) *differs = 1;  // all writers write the same
    found[i] = 0xFFFF;
  }
};

}  // namespace millrace::cuda::library
