// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/convert_kernels.h>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/convert_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// Instructions convert vectors of halves from AVX2 on.
#undef MILLRACE_CONVERTS_HALVES
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define MILLRACE_CONVERTS_HALVES 1
#else
#define MILLRACE_CONVERTS_HALVES 0
#endif

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The conversions have no branches, so that the compiler makes vectors of the loop.
template <class From, class To>
HWY_INLINE void Convert(const From* HWY_RESTRICT from, To* HWY_RESTRICT to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = convert_element<To>(from[i]);
}

#if MILLRACE_CONVERTS_HALVES
using Floats = hn::ScalableTag<float>;
using Halves = hn::Rebind<hwy::float16_t, Floats>;

/// An instruction makes a NaN quiet, `convert_element` keeps its bits.
void HalfToFloat(const float16* from, float* to, std::int64_t count) {
  const Floats d;
  const Halves halves;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto wide = hn::PromoteTo(d, hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(from + i)));
    if (HWY_LIKELY(hn::AllFalse(d, hn::IsNaN(wide))))
      hn::StoreU(wide, d, to + i);
    else
      Convert(from + i, to + i, lanes);
  }
  Convert(from + i, to + i, count - i);
}
void FloatToHalf(const float* from, float16* to, std::int64_t count) {
  const Floats d;
  const Halves halves;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(hn::DemoteTo(halves, hn::LoadU(d, from + i)), halves, reinterpret_cast<hwy::float16_t*>(to + i));
  Convert(from + i, to + i, count - i);
}
#else
void HalfToFloat(const float16* from, float* to, std::int64_t count) { Convert(from, to, count); }
void FloatToHalf(const float* from, float16* to, std::int64_t count) { Convert(from, to, count); }
#endif
void BrainToFloat(const bfloat16* from, float* to, std::int64_t count) { Convert(from, to, count); }
void FloatToBrain(const float* from, bfloat16* to, std::int64_t count) { Convert(from, to, count); }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(HalfToFloat);
HWY_EXPORT(BrainToFloat);
HWY_EXPORT(FloatToHalf);
HWY_EXPORT(FloatToBrain);

void convert_side_by_side(const float16* from, float* to, std::int64_t count) { HWY_DYNAMIC_DISPATCH(HalfToFloat)(from, to, count); }
void convert_side_by_side(const bfloat16* from, float* to, std::int64_t count) { HWY_DYNAMIC_DISPATCH(BrainToFloat)(from, to, count); }
void convert_side_by_side(const float* from, float16* to, std::int64_t count) { HWY_DYNAMIC_DISPATCH(FloatToHalf)(from, to, count); }
void convert_side_by_side(const float* from, bfloat16* to, std::int64_t count) { HWY_DYNAMIC_DISPATCH(FloatToBrain)(from, to, count); }

}  // namespace millrace::cpu
#endif
