// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include <millrace/tensor/dim.h>
#include <millrace/tensor/error.h>

namespace millrace {

/// Extents or coordinates whose rank is known at run time, 0…9, held inline. Rank 0 is a scalar. In a program's types an extent of
/// `unknown` (−1) stands for a number that only a run knows; tensors never hold it.
class DDim {
 public:
  static constexpr std::int64_t unknown = -1;

  constexpr DDim() = default;
  DDim(std::initializer_list<std::int64_t> extents);
  explicit DDim(std::span<const std::int64_t> extents);
  template <int N>
  DDim(const Dim<N>& dim) : DDim(std::span<const std::int64_t>(dim.extents, N)) {}

  int rank() const noexcept { return rank_; }
  bool is_scalar() const noexcept { return rank_ == 0 || (rank_ == 1 && extents_[0] == 1); }
  /// Axis from 0, or from −rank counting back from the end. IndexError names axis and rank.
  std::int64_t operator[](int axis) const { return extents_[checked_axis(axis)]; }
  std::int64_t& operator[](int axis) { return extents_[checked_axis(axis)]; }
  const std::int64_t* begin() const noexcept { return extents_; }
  const std::int64_t* end() const noexcept { return extents_ + rank_; }

  /// Number of elements; 1 for a scalar. Negative extents are a ShapeError, extents whose product (0 left out) does not fit an
  /// OverflowError.
  std::int64_t elements() const;
  /// Row-major strides, in elements. OverflowError when one does not fit.
  DDim row_major() const;
  /// Axes [begin, end).
  DDim slice(int begin, int end) const;
  /// This with `extent` put in before `axis` (0…rank), or with `axis` taken out.
  DDim inserted(int axis, std::int64_t extent) const;
  DDim erased(int axis) const;
  /// `axis` made 0…rank−1. IndexError otherwise.
  int checked_axis(int axis) const {
    const int at = axis < 0 ? axis + rank_ : axis;
    if (at < 0 || at >= rank_) throw_no_axis(axis);
    return at;
  }
  /// The same as a `Dim<N>`. ShapeError when the rank is not N.
  template <int N>
  Dim<N> as() const {
    if (rank_ != N) throw ShapeError("ddim: expected rank " + std::to_string(N) + ", found " + to_string());
    Dim<N> dim;
    for (int axis = 0; axis < N; ++axis) dim[axis] = extents_[axis];
    return dim;
  }

  /// "[2, 3]", "[]" for a scalar, "?" for an unknown extent.
  std::string to_string() const;
  friend bool operator==(const DDim& a, const DDim& b) noexcept;

 private:
  [[noreturn]] void throw_no_axis(int axis) const;

  int rank_ = 0;
  std::int64_t extents_[max_rank] = {};
};

/// The designs' name for what stands behind a DDim.
using DDimVar = DDim;

inline DDim make_ddim(std::initializer_list<std::int64_t> extents) { return DDim(extents); }
inline DDim make_ddim(const std::vector<std::int64_t>& extents) { return DDim(std::span<const std::int64_t>(extents)); }
/// Number of elements.
inline std::int64_t product(const DDim& dim) { return dim.elements(); }

}  // namespace millrace
