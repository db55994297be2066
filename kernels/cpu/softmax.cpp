// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/softmax.h>

#include <algorithm>
#include <type_traits>

#include <millrace/kernels/cpu/rows_along.h>
#include <millrace/kernels/cpu/softmax_kernels.h>

namespace millrace::cpu {
namespace {

template <class Wide>
void run_row(bool logarithm, const Wide* from, Wide* to, std::int64_t n) {
  logarithm ? log_softmax_row(from, to, n) : softmax_row(from, to, n);
}

/// Rows whose elements lie side by side in both.
template <class T>
void run_rows(const Tensor& x, bool logarithm, const Tensor& out, ThreadTeam& team) {
  const std::int64_t n = x.dim(-1);
  const DDim strides[2] = {x.strides().erased(-1), out.strides().erased(-1)};
  const StridedLoop<2> rows(x.dims().erased(-1), {&strides[0], &strides[1]});
  const T* from = static_cast<const T*>(x.raw());
  T* to = static_cast<T*>(out.raw_mutable());
  const auto [from_step, to_step] = rows.inner();
  rows.parallel(team, std::max<std::int64_t>(1, grain_heavy / n), [&](const auto& offsets, std::int64_t count) {
    for (std::int64_t row = 0; row < count; ++row)
      run_row(logarithm, from + offsets[0] + row * from_step, to + offsets[1] + row * to_step, n);
  });
}

}  // namespace

void softmax(const Tensor& x, bool logarithm, const Tensor& out, ThreadTeam& team) {
  if (out.elements() == 0) return;
  visit_floats(x.dtype(), [&](auto element, auto wide) {
    using T = decltype(element);
    using Wide = decltype(wide);
    if constexpr (std::is_same_v<T, Wide>)
      if (x.strides()[-1] == 1 && out.strides()[-1] == 1) return run_rows<T>(x, logarithm, out, team);
    each_rows<T, Wide>(x, 1, out, team, [&](Wide* const* rows, int count, std::int64_t n) {
      for (int r = 0; r < count; ++r) run_row(logarithm, rows[r], rows[r], n);
    });
  });
}

}  // namespace millrace::cpu
