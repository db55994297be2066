// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/convert_kernels.h>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/convert_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {

/// The conversions have no branches, so that the compiler makes vectors of the loop.
template <class From, class To>
HWY_INLINE void Convert(const From* HWY_RESTRICT from, To* HWY_RESTRICT to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = convert_element<To>(from[i]);
}

void HalfToFloat(const float16* from, float* to, std::int64_t count) { Convert(from, to, count); }
void BrainToFloat(const bfloat16* from, float* to, std::int64_t count) { Convert(from, to, count); }
void FloatToHalf(const float* from, float16* to, std::int64_t count) { Convert(from, to, count); }
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
