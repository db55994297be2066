// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include <millrace/tensor/ddim.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// All elements of some extents in row-major order, seen by N operands with strides of their own (0 where an operand is
/// stretched). Axes that every operand can walk as one are merged, so that the innermost run is as long as it can be.
template <std::size_t N>
class StridedLoop {
 public:
  using Offsets = std::array<std::int64_t, N>;

  StridedLoop(const DDim& dims, const std::array<const DDim*, N>& strides) : count_(dims.elements()) {
    for (int axis = 0; axis < dims.rank(); ++axis) {
      const std::int64_t extent = dims.begin()[axis];
      if (extent == 1 && count_ != 0) continue;
      Offsets steps;
      for (std::size_t i = 0; i < N; ++i) steps[i] = strides[i]->begin()[axis];
      add_axis(extent, steps);
    }
    if (rank_ == 0) add_axis(1, Offsets{});
  }

  std::int64_t count() const { return count_; }
  /// Merged axes, the innermost last.
  int rank() const { return rank_; }
  std::int64_t extent(int axis) const { return extents_[static_cast<std::size_t>(axis)]; }
  const Offsets& steps(int axis) const { return steps_[static_cast<std::size_t>(axis)]; }
  /// Number of innermost runs.
  std::int64_t runs() const { return count_ / std::max<std::int64_t>(1, extents_[rank_ - 1]); }
  /// Strides of the innermost run.
  const Offsets& inner() const { return steps_[rank_ - 1]; }

  /// Calls f(offsets, run) for the pieces of innermost runs that make up elements [begin, end) in order.
  template <class F>
  void each_run(std::int64_t begin, std::int64_t end, F&& f) const {
    if (begin >= end) return;
    const std::int64_t run = extents_[rank_ - 1];
    std::array<std::int64_t, max_rank + 1> index{};
    std::int64_t within = begin % run;
    Offsets offsets = start_at(begin / run, within, index);
    for (std::int64_t at = begin;;) {
      const std::int64_t length = std::min(run - within, end - at);
      f(std::as_const(offsets), length);
      at += length;
      if (at >= end) return;
      for (std::size_t i = 0; i < N; ++i) offsets[i] -= within * steps_[rank_ - 1][i];
      within = 0;
      next(index, offsets);
    }
  }

  /// Calls f for the runs of all elements, split over the team when there are more than `grain`.
  template <class F>
  void parallel(ThreadTeam& team, std::int64_t grain, F&& f) const {
    team.parallel(count_, grain, [&](std::int64_t begin, std::int64_t end) { each_run(begin, end, f); });
  }

  /// Calls f(offsets, row_steps, rows, run) for pieces that cover all elements: `rows` innermost runs of `run` elements, one of which begins `row_steps` behind
  /// another. Pieces are split over the team when there are more than `grain` elements.
  template <class F>
  void parallel_rows(ThreadTeam& team, std::int64_t grain, F&& f) const {
    const std::int64_t run = extents_[rank_ - 1];
    if (rank_ == 1) return parallel(team, grain, [&](const Offsets& offsets, std::int64_t count) { f(offsets, Offsets{}, 1, count); });
    const std::int64_t all = extents_[rank_ - 2];
    team.parallel(runs(), std::max<std::int64_t>(1, grain / std::max<std::int64_t>(1, run)), [&](std::int64_t begin, std::int64_t end) {
      while (begin < end) {
        std::array<std::int64_t, max_rank + 1> index{};
        const Offsets offsets = start_at(begin, 0, index);
        const std::int64_t rows = std::min(end - begin, all - index[rank_ - 2]);
        f(offsets, steps_[rank_ - 2], rows, run);
        begin += rows;
      }
    });
  }

 private:
  void add_axis(std::int64_t extent, const Offsets& steps) {
    if (rank_ > 0) {
      bool one = true;
      for (std::size_t i = 0; i < N; ++i) one = one && steps_[rank_ - 1][i] == steps[i] * extent;
      if (one) {
        extents_[rank_ - 1] *= extent;
        steps_[rank_ - 1] = steps;
        return;
      }
    }
    extents_[rank_] = extent;
    steps_[rank_++] = steps;
  }

  /// Coordinates and offsets of outer run `outer`, `within` elements into it.
  Offsets start_at(std::int64_t outer, std::int64_t within, std::array<std::int64_t, max_rank + 1>& index) const {
    Offsets offsets{};
    for (std::size_t i = 0; i < N; ++i) offsets[i] = within * steps_[rank_ - 1][i];
    for (int axis = rank_ - 2; axis >= 0; --axis) {
      index[axis] = outer % extents_[axis];
      outer /= extents_[axis];
      for (std::size_t i = 0; i < N; ++i) offsets[i] += index[axis] * steps_[axis][i];
    }
    return offsets;
  }

  void next(std::array<std::int64_t, max_rank + 1>& index, Offsets& offsets) const {
    for (int axis = rank_ - 2; axis >= 0; --axis) {
      for (std::size_t i = 0; i < N; ++i) offsets[i] += steps_[axis][i];
      if (++index[axis] < extents_[axis]) return;
      for (std::size_t i = 0; i < N; ++i) offsets[i] -= steps_[axis][i] * extents_[axis];
      index[axis] = 0;
    }
  }

  std::int64_t count_;
  int rank_ = 0;
  std::array<std::int64_t, max_rank + 1> extents_{};
  std::array<Offsets, max_rank + 1> steps_{};
};

/// Elements below which a second thread costs more than it saves, for work of about a nanosecond each and for cheap
/// copies.
inline constexpr std::int64_t grain_heavy = 4096;
inline constexpr std::int64_t grain_light = 32768;

}  // namespace millrace::cpu
