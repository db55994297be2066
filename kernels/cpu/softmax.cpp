// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/softmax.h>

#include <cmath>

#include <millrace/kernels/cpu/rows_along.h>
#include <millrace/kernels/cpu/unary_kernels.h>

namespace millrace::cpu {
namespace {

template <class T>
void softmax_rows(T* const* rows, int count, std::int64_t n) {
  T sums[sum_rows];
  for (int r = 0; r < count; ++r) {
    const T most = greatest(rows[r], n);
    for (std::int64_t i = 0; i < n; ++i) rows[r][i] -= most;
    unary_run(Unary::exp, {}, rows[r], rows[r], static_cast<std::size_t>(n));
  }
  ordered_sums<T>(rows, count, n, sums);
  for (int r = 0; r < count; ++r)
    for (std::int64_t i = 0; i < n; ++i) rows[r][i] /= sums[r];
}

template <class T>
void log_softmax_rows(T* const* rows, int count, std::int64_t n) {
  std::vector<T> room(static_cast<std::size_t>(n) * static_cast<std::size_t>(count));
  T* powers[sum_rows] = {};
  T sums[sum_rows];
  for (int r = 0; r < count; ++r) {
    const T most = greatest(rows[r], n);
    powers[r] = room.data() + r * n;
    for (std::int64_t i = 0; i < n; ++i) rows[r][i] -= most;
    unary_run(Unary::exp, {}, rows[r], powers[r], static_cast<std::size_t>(n));
  }
  ordered_sums<T>(powers, count, n, sums);
  for (int r = 0; r < count; ++r) {
    const T norm = std::log(sums[r]);
    for (std::int64_t i = 0; i < n; ++i) rows[r][i] -= norm;
  }
}

}  // namespace

void softmax(const Tensor& x, bool logarithm, const Tensor& out, ThreadTeam& team) {
  visit_floats(x.dtype(), [&](auto element, auto wide) {
    using Wide = decltype(wide);
    each_rows<decltype(element), Wide>(x, 1, out, team, [&](Wide* const* rows, int count, std::int64_t n) {
      logarithm ? log_softmax_rows(rows, count, n) : softmax_rows(rows, count, n);
    });
  });
}

}  // namespace millrace::cpu
