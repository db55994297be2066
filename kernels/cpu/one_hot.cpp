// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/one_hot.h>

#include <algorithm>

#include <millrace/kernels/cpu/element_size.h>
#include <millrace/kernels/cpu/index.h>

namespace millrace::cpu {

void one_hot(const Tensor& index, int axis, const Tensor& values, const Tensor& out, ThreadTeam& team) {
  if (out.elements() == 0) return;
  const std::vector<std::int64_t> places = index_values(index);
  const std::int64_t depth = out.dim(axis);
  const std::int64_t behind = out.strides()[axis];  // elements from one place of the new axis to the next
  visit_size(out.dtype(), [&](auto type) {
    using U = typename decltype(type)::type;
    const U* value = static_cast<const U*>(values.raw());
    U* to = static_cast<U*>(out.raw_mutable());
    std::fill_n(to, out.elements(), value[0]);
    team.parallel(static_cast<std::int64_t>(places.size()), grain_light, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t given = places[static_cast<std::size_t>(i)];
        const std::int64_t place = given < 0 ? given + depth : given;
        if (place >= 0 && place < depth) to[i / behind * behind * depth + place * behind + i % behind] = value[1];
      }
    });
  });
}

}  // namespace millrace::cpu
