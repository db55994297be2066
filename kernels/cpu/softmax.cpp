// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/softmax.h>

#include <vector>

#include <millrace/kernels/cpu/norm_rows.h>
#include <millrace/kernels/cpu/rows_along.h>

namespace millrace::cpu {

void softmax(const Tensor& x, bool logarithm, const Tensor& out, ThreadTeam& team) {
  visit_floats(x.dtype(), [&](auto element, auto wide) {
    using Wide = decltype(wide);
    each_rows<decltype(element), Wide>(x, 1, out, team, [&](Wide* const* rows, int count, std::int64_t n) {
      if (!logarithm) return softmax_rows(rows, count, n);
      std::vector<Wide> room(static_cast<std::size_t>(n) * static_cast<std::size_t>(count));
      log_softmax_rows(rows, count, n, room.data());
    });
  });
}

}  // namespace millrace::cpu
