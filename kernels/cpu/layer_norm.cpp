// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/layer_norm.h>

#include <millrace/kernels/cpu/norm_kernels.h>
#include <millrace/kernels/cpu/rows_along.h>

namespace millrace::cpu {

void layer_norm(const Tensor& x, const Tensor& scale, const Tensor* bias, int axes, double epsilon, const Tensor& out, ThreadTeam& team) {
  visit_floats(x.dtype(), [&](auto element, auto wide) {
    using Wide = decltype(wide);
    const auto* factors = static_cast<const Wide*>(scale.raw());
    const auto* addends = bias == nullptr ? nullptr : static_cast<const Wide*>(bias->raw());
    each_rows<decltype(element), Wide>(x, axes, out, team, [&](Wide* const* rows, int count, std::int64_t n) {
      layer_norm_rows(rows, rows, count, n, factors, addends, static_cast<Wide>(epsilon));
    });
  });
}

}  // namespace millrace::cpu
