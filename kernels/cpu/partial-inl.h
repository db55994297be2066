// SPDX-License-Identifier: Apache-2.0
// Vectors of which some lanes are there: the ends of rows that are no whole vectors. Included once per instruction set.
#if defined(MILLRACE_KERNELS_CPU_PARTIAL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_PARTIAL_INL_H
#undef MILLRACE_KERNELS_CPU_PARTIAL_INL_H
#else
#define MILLRACE_KERNELS_CPU_PARTIAL_INL_H
#endif

#include <cstddef>
#include <cstring>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// `count` ≤ lanes elements, the other lanes zero. Memory behind them is not read.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadSome(D d, const T* from, std::size_t count) {
  if (count == hn::Lanes(d)) return hn::LoadU(d, from);
#if HWY_TARGET == HWY_SCALAR
  return hn::Zero(d);
#elif HWY_TARGET <= HWY_AVX2  // has masked loads
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
#else
  HWY_ALIGN T lanes[hn::MaxLanes(d)] = {};
  std::memcpy(lanes, from, count * sizeof(T));
  return hn::Load(d, lanes);
#endif
}

/// The first `count` lanes. In halves, not through a mask: elements stored through a mask reach memory before a load can take them.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void StoreSome(D d, hn::Vec<D> value, T* to, std::size_t count) {
  if (count == hn::Lanes(d)) return hn::StoreU(value, d, to);
#if HWY_TARGET == HWY_SCALAR
  if (count > 0) hn::StoreU(value, d, to);
#else
  if constexpr (hn::MaxLanes(d) > 1) {
    const hn::Half<D> half;
    const std::size_t few = hn::Lanes(half);
    if (count < few) return StoreSome(half, hn::LowerHalf(half, value), to, count);
    hn::StoreU(hn::LowerHalf(half, value), half, to);
    StoreSome(half, hn::UpperHalf(half, value), to + few, count - few);
  }
#endif
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
