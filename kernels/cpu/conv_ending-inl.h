// SPDX-License-Identifier: Apache-2.0
// Arithmetic behind a convolution, in registers. Included once per instruction set.
#if defined(MILLRACE_KERNELS_CPU_CONV_ENDING_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_CONV_ENDING_INL_H
#undef MILLRACE_KERNELS_CPU_CONV_ENDING_INL_H
#else
#define MILLRACE_KERNELS_CPU_CONV_ENDING_INL_H
#endif

#include <hwy/highway.h>
#include <millrace/kernels/cpu/activation-inl.h>
#include <millrace/kernels/cpu/binary-inl.h>
#include <millrace/kernels/cpu/conv_ending.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A result behind its relu and its ending.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> TakeEnding(D d, bool relu, const ConvEnding<T>& ending, hn::Vec<D> x) {
  if (relu) x = KeepNaN(d, x, hn::Max(x, hn::Zero(d)));
  if (ending.kind == ConvEnding<T>::Kind::bounds) return Minimum(Maximum(x, hn::Set(d, ending.low)), hn::Set(d, ending.high));
  if (ending.kind == ConvEnding<T>::Kind::hard_swish) return HardSwish(d, x);
  return x;
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
