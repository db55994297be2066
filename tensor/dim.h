// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <millrace/tensor/host_device.h>

namespace millrace {

inline constexpr int max_rank = 9;

/// N extents or N coordinates, N = 1…9, all known to the compiler as a count; usable on a device. Row-major: the last axis is the fastest.
template <int N>
struct Dim {
  static_assert(N >= 1 && N <= max_rank, "Dim has 1 to 9 axes");
  std::int64_t extents[N] = {};

  constexpr Dim() = default;
  template <class... Ints>
    requires(sizeof...(Ints) == N && (std::is_integral_v<Ints> && ...))
  MILLRACE_HD constexpr explicit(N == 1) Dim(Ints... values) : extents{static_cast<std::int64_t>(values)...} {}

  static constexpr int rank() { return N; }
  MILLRACE_HD constexpr std::int64_t& operator[](int axis) { return extents[axis]; }
  MILLRACE_HD constexpr std::int64_t operator[](int axis) const { return extents[axis]; }
  friend constexpr bool operator==(const Dim&, const Dim&) = default;
};

/// `make_dim(3, 3)` is a `Dim<2>`.
template <class... Ints>
constexpr Dim<static_cast<int>(sizeof...(Ints))> make_dim(Ints... extents) {
  return Dim<static_cast<int>(sizeof...(Ints))>(extents...);
}

/// Number of elements: the product of the extents.
template <int N>
MILLRACE_HD constexpr std::int64_t product(const Dim<N>& dim) {
  std::int64_t count = 1;
  for (int axis = 0; axis < N; ++axis) count *= dim[axis];
  return count;
}

/// Σ index·stride: where an element lies, in elements from the first.
template <int N>
MILLRACE_HD constexpr std::int64_t linearize(const Dim<N>& index, const Dim<N>& strides) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < N; ++axis) offset += index[axis] * strides[axis];
  return offset;
}

/// Coordinates of the `linear`-th element of `extents` in row-major order; every extent must be positive.
template <int N>
MILLRACE_HD constexpr Dim<N> unflatten(std::int64_t linear, const Dim<N>& extents) {
  Dim<N> index;
  for (int axis = N - 1; axis >= 0; --axis) {
    index[axis] = linear % extents[axis];
    linear /= extents[axis];
  }
  return index;
}

/// Row-major strides of `extents`, in elements.
template <int N>
MILLRACE_HD constexpr Dim<N> row_major(const Dim<N>& extents) {
  Dim<N> strides;
  std::int64_t step = 1;
  for (int axis = N - 1; axis >= 0; --axis) {
    strides[axis] = step;
    step *= extents[axis];
  }
  return strides;
}

/// Axes [Begin, End) of `dim`.
template <int Begin, int End, int N>
constexpr Dim<End - Begin> slice(const Dim<N>& dim) {
  static_assert(0 <= Begin && Begin < End && End <= N, "slice of a Dim: 0 <= begin < end <= rank");
  Dim<End - Begin> part;
  for (int axis = Begin; axis < End; ++axis) part[axis - Begin] = dim[axis];
  return part;
}

}  // namespace millrace
