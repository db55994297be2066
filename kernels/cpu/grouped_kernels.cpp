// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/grouped_kernels.h>

#include <algorithm>

#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/grouped_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/partial-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T, class Index>
HWY_INLINE void RunGrouped(const GroupedCall<T, Index>& call) {
  const hn::ScalableTag<T> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t unit = 0; unit < call.units; unit += lanes) {
    const auto some = static_cast<std::size_t>(std::min(lanes, call.units - unit));
    const auto bases = LoadSome(di, call.bases + unit, some);
    auto total = hn::Zero(d);
    for (std::int64_t begin = 0; begin < call.k; begin += k_block) {
      auto sum = hn::Zero(d);
      for (std::int64_t at = begin; at < std::min(call.k, begin + k_block); ++at) {
        const auto x = hn::GatherIndex(d, call.x + call.offsets[at], bases);
        sum = hn::MulAdd(LoadSome(d, call.weights + at * call.units + unit, some), x, sum);
      }
      total = begin == 0 ? sum : hn::Add(total, sum);
    }
    StoreSome(d, total, call.out + unit, some);
  }
}

void RunGroupedF32(const GroupedCall<float, std::int32_t>& call) { RunGrouped(call); }
void RunGroupedF64(const GroupedCall<double, std::int64_t>& call) { RunGrouped(call); }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(RunGroupedF32);
HWY_EXPORT(RunGroupedF64);

void grouped_units(const GroupedCall<float, std::int32_t>& call) { HWY_DYNAMIC_DISPATCH(RunGroupedF32)(call); }
void grouped_units(const GroupedCall<double, std::int64_t>& call) { HWY_DYNAMIC_DISPATCH(RunGroupedF64)(call); }

}  // namespace millrace::cpu
#endif
