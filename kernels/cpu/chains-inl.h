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

/// Adds the chains in halves.
template <class T>
HWY_INLINE T Halved(T* chains) {
  for (int half = norm_chains / 2; half > 0; half /= 2)
    for (int chain = 0; chain < half; ++chain) chains[chain] += chains[chain + half];
  return chains[0];
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
