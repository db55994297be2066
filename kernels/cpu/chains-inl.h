// SPDX-License-Identifier: Apache-2.0
// Sums of one row in the sixteen chains of kernels/layer_norm.h. Included once per instruction set.
#if defined(MILLRACE_KERNELS_CPU_CHAINS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_CHAINS_INL_H
#undef MILLRACE_KERNELS_CPU_CHAINS_INL_H
#else
#define MILLRACE_KERNELS_CPU_CHAINS_INL_H
#endif

#include <hwy/highway.h>
#include <millrace/kernels/cpu/norm_kernels.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The sum of a vector's lanes, in halves.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::TFromD<D> SumOfHalves([[maybe_unused]] D d, V lanes) {
#if HWY_TARGET == HWY_SCALAR  // its vectors are one lane
  return hn::GetLane(lanes);
#else
  if constexpr (hn::MaxLanes(d) == 1) {
    return hn::GetLane(lanes);
  } else {
    const hn::Half<D> half;
    return SumOfHalves(half, hn::Add(hn::LowerHalf(half, lanes), hn::UpperHalf(half, lanes)));
  }
#endif
}

/// The sixteen chains of one sum.
template <class T>
struct Chains {
  using D = hn::CappedTag<T, norm_chains>;
  static constexpr int lanes = static_cast<int>(hn::MaxLanes(D())), parts = norm_chains / lanes;
  hn::Vec<D> part[parts];

  HWY_INLINE void clear() {
    for (int p = 0; p < parts; ++p) part[p] = hn::Zero(D());
  }
  /// The chains in halves.
  HWY_INLINE T total() {
    for (int half = parts / 2; half > 0; half /= 2)
      for (int p = 0; p < half; ++p) part[p] = hn::Add(part[p], part[p + half]);
    return SumOfHalves(D(), part[0]);
  }
};

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
