// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/layer_norm.h>

#include <cmath>

#include <millrace/kernels/cpu/rows_along.h>

namespace millrace::cpu {
namespace {

template <class T>
void norm_rows(T* const* rows, int count, std::int64_t n, const T* scale, const T* bias, T epsilon) {
  T sums[sum_rows];
  ordered_sums<T>(rows, count, n, sums);
  std::vector<T> room(static_cast<std::size_t>(n) * static_cast<std::size_t>(count));
  T* squares[sum_rows] = {};
  for (int r = 0; r < count; ++r) {
    const T mean = sums[r] / static_cast<T>(n);
    squares[r] = room.data() + r * n;
    for (std::int64_t i = 0; i < n; ++i) {
      rows[r][i] -= mean;
      squares[r][i] = rows[r][i] * rows[r][i];
    }
  }
  ordered_sums<T>(squares, count, n, sums);
  for (int r = 0; r < count; ++r) {
    const T factor = T{1} / std::sqrt(sums[r] / static_cast<T>(n) + epsilon);
    for (std::int64_t i = 0; i < n; ++i) rows[r][i] = rows[r][i] * factor * scale[i];
    if (bias != nullptr)
      for (std::int64_t i = 0; i < n; ++i) rows[r][i] += bias[i];
  }
}

}  // namespace

void layer_norm(const Tensor& x, const Tensor& scale, const Tensor* bias, int axes, double epsilon, const Tensor& out, ThreadTeam& team) {
  visit_floats(x.dtype(), [&](auto element, auto wide) {
    using Wide = decltype(wide);
    const auto* factors = static_cast<const Wide*>(scale.raw());
    const auto* addends = bias == nullptr ? nullptr : static_cast<const Wide*>(bias->raw());
    each_rows<decltype(element), Wide>(x, axes, out, team, [&](Wide* const* rows, int count, std::int64_t n) {
      norm_rows(rows, count, n, factors, addends, static_cast<Wide>(epsilon));
    });
  });
}

}  // namespace millrace::cpu
