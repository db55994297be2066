// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/layer_norm_gradient.h>

#include <algorithm>

#include <millrace/kernels/cpu/norm_kernels.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

template <class T>
void run(const NormGradientCall& call, std::int64_t n, ThreadTeam& team) {
  const auto* x = static_cast<const T*>(call.x.raw());
  const auto* g = static_cast<const T*>(call.g.raw());
  const auto* scale = static_cast<const T*>(call.scale.raw());
  auto* dx = static_cast<T*>(call.dx.raw_mutable());
  auto* rows = static_cast<T*>(call.rows.raw_mutable());
  team.parallel(call.x.elements() / n, std::max<std::int64_t>(1, grain_heavy / n), [&](std::int64_t begin, std::int64_t end) {
    NormGradientRow<T> some[norm_rows];
    for (std::int64_t first = begin; first < end; first += norm_rows) {
      const auto count = static_cast<int>(std::min<std::int64_t>(norm_rows, end - first));
      for (int i = 0; i < count; ++i) {
        const std::int64_t at = (first + i) * n;
        some[i] = {x + at, g + at, scale, dx + at, rows + at};
      }
      layer_norm_gradient_rows(some, count, n, static_cast<T>(call.epsilon));
    }
  });
}

}  // namespace

void layer_norm_gradient(const NormGradientCall& call, std::int64_t n, ThreadTeam& team) {
  if (call.x.elements() == 0) return;
  call.x.dtype() == DType::f64 ? run<double>(call, n, team) : run<float>(call, n, team);
}

}  // namespace millrace::cpu
