// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/copy.h>

#include <cstring>

#include <millrace/kernels/cpu/element_size.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {

void copy(const Tensor& x, const Tensor& out, ThreadTeam& team) {
  visit_size(x.dtype(), [&](auto type) {
    using U = typename decltype(type)::type;
    const StridedLoop<2> loop(x.dims(), {&x.strides(), &out.strides()});
    const U* from = static_cast<const U*>(x.raw());
    U* to = static_cast<U*>(out.raw_mutable());
    const auto [from_step, to_step] = loop.inner();
    loop.parallel(team, grain_light, [&](const auto& offsets, std::int64_t count) {
      const U* source = from + offsets[0];
      U* target = to + offsets[1];
      if (from_step == 1 && to_step == 1) {
        std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(U));
      } else {
        for (std::int64_t i = 0; i < count; ++i) target[i * to_step] = source[i * from_step];
      }
    });
  });
}

}  // namespace millrace::cpu
