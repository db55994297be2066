// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cpu/strided_loop.h>
#include <millrace/tensor/tensor.h>

namespace millrace::cpu {

/// out = f(x), element by element, split over the team: `x` holds elements From, `out` To, with any strides and the same extents.
template <class From, class To, class F>
void each_element(const Tensor& x, const Tensor& out, ThreadTeam& team, F f) {
  const StridedLoop<2> loop(x.dims(), {&x.strides(), &out.strides()});
  const From* from = static_cast<const From*>(x.raw());
  To* to = static_cast<To*>(out.raw_mutable());
  const auto [from_step, to_step] = loop.inner();
  loop.parallel(team, grain_light, [&](const auto& offsets, std::int64_t count) {
    const From* source = from + offsets[0];
    To* target = to + offsets[1];
    if (from_step == 1 && to_step == 1) {
      for (std::int64_t i = 0; i < count; ++i) target[i] = f(source[i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) target[i * to_step] = f(source[i * from_step]);
    }
  });
}

}  // namespace millrace::cpu
