// SPDX-License-Identifier: Apache-2.0
// The lesser and the greater of two elements, in vectors. Included once per instruction set.
#if defined(MILLRACE_KERNELS_CPU_BINARY_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_BINARY_INL_H
#undef MILLRACE_KERNELS_CPU_BINARY_INL_H
#else
#define MILLRACE_KERNELS_CPU_BINARY_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A NaN is not equal to anything; with AVX, hn::Ne says that it is.
template <class V>
HWY_INLINE auto NotEqual(V a, V b) {
  return hn::Not(hn::Eq(a, b));
}

/// NaN wins; y where both are equal.
template <class V>
HWY_INLINE V Minimum(V x, V y) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  // The instruction gives its second operand where both are equal and where one is NaN. A choice in this order is a mask of it with AVX-512.
  return hn::IfThenElse(hn::Eq(x, x), hn::Min(x, y), x);
#else
  return hn::IfThenElse(hn::Or(hn::Lt(x, y), NotEqual(x, x)), x, y);
#endif
}
template <class V>
HWY_INLINE V Maximum(V x, V y) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::IfThenElse(hn::Eq(x, x), hn::Max(x, y), x);
#else
  return hn::IfThenElse(hn::Or(hn::Gt(x, y), NotEqual(x, x)), x, y);
#endif
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
