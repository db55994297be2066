// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/where.h>

#include <millrace/kernels/cpu/element_size.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

/// Elements that lie side by side, or are one element: loops that compilers make vectors of.
template <int AStep, int BStep, class U>
void choose(const std::uint8_t* choice, const U* x, const U* y, U* z, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const U left = x[i * AStep], right = y[i * BStep];
    z[i] = choice[i] ? left : right;
  }
}

}  // namespace

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out, ThreadTeam& team) {
  visit_size(a.dtype(), [&](auto type) {
    using U = typename decltype(type)::type;
    const StridedLoop<4> loop(out.dims(), {&condition.strides(), &a.strides(), &b.strides(), &out.strides()});
    const auto* choices = static_cast<const std::uint8_t*>(condition.raw());
    const U* left = static_cast<const U*>(a.raw());
    const U* right = static_cast<const U*>(b.raw());
    U* result = static_cast<U*>(out.raw_mutable());
    const auto [choice_step, a_step, b_step, out_step] = loop.inner();
    loop.parallel(team, grain_light, [&](const auto& offsets, std::int64_t count) {
      const std::uint8_t* choice = choices + offsets[0];
      const U* x = left + offsets[1];
      const U* y = right + offsets[2];
      U* z = result + offsets[3];
      if (choice_step == 1 && out_step == 1 && (a_step | b_step) >> 1 == 0) {
        if (a_step == 1) return b_step == 1 ? choose<1, 1>(choice, x, y, z, count) : choose<1, 0>(choice, x, y, z, count);
        return b_step == 1 ? choose<0, 1>(choice, x, y, z, count) : choose<0, 0>(choice, x, y, z, count);
      }
      for (std::int64_t i = 0; i < count; ++i) z[i * out_step] = choice[i * choice_step] ? x[i * a_step] : y[i * b_step];
    });
  });
}

}  // namespace millrace::cpu
