// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/cumsum.h>

#include <algorithm>
#include <type_traits>

#include <millrace/kernels/cpu/cumsum_kernels.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

/// The type of running sums of T: wrapping for integers, f32 for narrow floats.
template <class T>
struct Running {
  using type = std::conditional_t<std::is_integral_v<T>, std::uint64_t, std::conditional_t<std::is_same_v<T, double>, double, float>>;
};

template <class T>
void sum_lanes(const Tensor& x, int axis, bool exclusive, bool reverse, const Tensor& out, ThreadTeam& team) {
  using Wide = typename Running<T>::type;
  const std::int64_t n = x.dim(axis);
  const DDim strides[2] = {x.strides().erased(axis), out.strides().erased(axis)};
  const StridedLoop<2> lanes(x.dims().erased(axis), {&strides[0], &strides[1]});
  const T* from = static_cast<const T*>(x.raw()) + (reverse ? (n - 1) * x.strides()[axis] : 0);
  T* to = static_cast<T*>(out.raw_mutable()) + (reverse ? (n - 1) * out.strides()[axis] : 0);
  const std::int64_t from_step = reverse ? -x.strides()[axis] : x.strides()[axis];
  const std::int64_t to_step = reverse ? -out.strides()[axis] : out.strides()[axis];
  const std::int64_t grain = std::max<std::int64_t>(1, grain_heavy / n);
  const auto [lane_from, lane_to] = lanes.inner();
  if constexpr (std::is_same_v<T, Wide> && std::is_floating_point_v<T>) {
    if (lane_from == 1 && lane_to == 1) {
      lanes.parallel(team, std::max<std::int64_t>(16, grain), [&](const auto& offsets, std::int64_t count) {
        running_columns(from + offsets[0], from_step, to + offsets[1], to_step, n, count, exclusive);
      });
      return;
    }
  }
  // The sums of a few lanes are independent: they go side by side, as one would wait for its own additions.
  constexpr int few = 8;
  lanes.parallel(team, grain, [&](const auto& offsets, std::int64_t count) {
    const auto some = [&](auto width, std::int64_t lane) {
      const T* source = from + offsets[0] + lane * lanes.inner()[0];
      T* target = to + offsets[1] + lane * lanes.inner()[1];
      Wide sums[decltype(width)::value] = {};
      for (std::int64_t i = 0; i < n; ++i) {
        for (int l = 0; l < width; ++l) {
          T* const place = target + i * to_step + l * lanes.inner()[1];
          const Wide next = sums[l] + convert_element<Wide>(source[i * from_step + l * lanes.inner()[0]]);
          *place = convert_element<T>(exclusive ? sums[l] : next);
          sums[l] = next;
        }
      }
    };
    std::int64_t lane = 0;
    for (; lane + few <= count; lane += few) some(std::integral_constant<int, few>(), lane);
    for (; lane < count; ++lane) some(std::integral_constant<int, 1>(), lane);
  });
}

}  // namespace

void cumsum(const Tensor& x, int axis, bool exclusive, bool reverse, const Tensor& out, ThreadTeam& team) {
  if (out.elements() == 0) return;
  visit_dtype(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (!std::is_same_v<T, bool>) sum_lanes<T>(x, axis, exclusive, reverse, out, team);
  });
}

}  // namespace millrace::cpu
