// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/cumsum.h>

#include <type_traits>

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
  lanes.parallel(team, std::max<std::int64_t>(1, grain_heavy / n), [&](const auto& offsets, std::int64_t count) {
    for (std::int64_t lane = 0; lane < count; ++lane) {
      const T* source = from + offsets[0] + lane * lanes.inner()[0];
      T* target = to + offsets[1] + lane * lanes.inner()[1];
      Wide sum{};
      for (std::int64_t i = 0; i < n; ++i) {
        if (exclusive) target[i * to_step] = convert_element<T>(sum);
        sum += convert_element<Wide>(source[i * from_step]);
        if (!exclusive) target[i * to_step] = convert_element<T>(sum);
      }
    }
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
