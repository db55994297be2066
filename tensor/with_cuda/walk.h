// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/ddim.h>
#include <millrace/tensor/host_device.h>

namespace millrace::cuda {

/// All elements of some extents in row-major order, seen by N operands with strides of their own. Passed to kernels by value. Axes that every
/// operand can walk as one are merged.
template <int N>
struct Walk {
  std::int64_t count = 0;
  std::int64_t extents[max_rank + 1];
  std::int64_t steps[N][max_rank + 1];
  int rank = 0;

  Walk(const DDim& dims, const DDim* const (&strides)[N]) : count(dims.elements()) {
    for (int axis = 0; axis < dims.rank(); ++axis) {
      if (dims.begin()[axis] == 1 && count != 0) continue;
      std::int64_t step[N];
      for (int i = 0; i < N; ++i) step[i] = strides[i]->begin()[axis];
      add(dims.begin()[axis], step);
    }
    if (rank == 0) {
      const std::int64_t none[N] = {};
      add(1, none);
    }
  }

  /// The offset of element `at` in each operand.
  MILLRACE_HD void find(std::int64_t at, std::int64_t (&offsets)[N]) const {
    for (int i = 0; i < N; ++i) offsets[i] = 0;
    for (int axis = rank - 1; axis >= 0; --axis) {
      std::int64_t within = at;
      if (axis > 0) {
        // Division of 64 bits takes the device four times as long.
        const std::int64_t rest =
            (at | extents[axis]) >> 31 == 0
                ? static_cast<std::int64_t>(static_cast<std::uint32_t>(at) / static_cast<std::uint32_t>(extents[axis]))
                : at / extents[axis];
        within = at - rest * extents[axis];
        at = rest;
      }
      for (int i = 0; i < N; ++i) offsets[i] += within * steps[i][axis];
    }
  }

 private:
  void add(std::int64_t extent, const std::int64_t (&step)[N]) {
    bool one = rank > 0;
    for (int i = 0; one && i < N; ++i) one = steps[i][rank - 1] == step[i] * extent;
    const int at = one ? rank - 1 : rank++;
    extents[at] = one ? extents[at] * extent : extent;
    for (int i = 0; i < N; ++i) steps[i][at] = step[i];
  }
};

}  // namespace millrace::cuda
