// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/fill.h>

#include <type_traits>

#include <millrace/kernels/cpu/element_size.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {

void fill(const Tensor& value, const Tensor& out, ThreadTeam& team) {
  visit_size(out.dtype(), [&](auto type) {
    using U = typename decltype(type)::type;
    const U element = *static_cast<const U*>(value.raw());
    const StridedLoop<1> loop(out.dims(), {&out.strides()});
    U* to = static_cast<U*>(out.raw_mutable());
    const std::int64_t step = loop.inner()[0];
    loop.parallel(team, grain_light, [&](const auto& offsets, std::int64_t count) {
      U* target = to + offsets[0];
      if (step == 1) {
        std::fill_n(target, count, element);
      } else {
        for (std::int64_t i = 0; i < count; ++i) target[i * step] = element;
      }
    });
  });
}

void arange(double start, double step, const Tensor& out, ThreadTeam& team) {
  visit_dtype(out.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    T* to = static_cast<T*>(out.raw_mutable());
    team.parallel(out.elements(), grain_light, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        if constexpr (std::is_integral_v<T>) {
          to[i] = static_cast<T>(static_cast<std::int64_t>(start) + i * static_cast<std::int64_t>(step));
        } else {
          to[i] = convert_element<T>(start + static_cast<double>(i) * step);
        }
      }
    });
  });
}

}  // namespace millrace::cpu
