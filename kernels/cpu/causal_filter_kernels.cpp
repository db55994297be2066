// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/causal_filter_kernels.h>

#include <algorithm>
#include <cstddef>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/causal_filter_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/partial-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// `Vectors` vectors from element `at` on, the last of `some` lanes.
template <bool Each, int Vectors, class T>
HWY_INLINE void RunVectors(const FilterCall<T>& call, std::int64_t at, std::size_t some) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto load = [&](const T* from, int v) HWY_ATTR {
    return v + 1 == Vectors ? LoadSome(d, from + at + v * lanes, some) : hn::LoadU(d, from + at + v * lanes);
  };
  const auto number = [&](const T* from, int v) HWY_ATTR {
    if constexpr (Each)
      return load(from, v);
    else
      return hn::Set(d, *from);
  };
  hn::Vec<decltype(d)> sum[Vectors];
  for (int v = 0; v < Vectors; ++v) sum[v] = hn::Mul(load(call.taps[0], v), number(call.weights, v));
  for (std::int64_t j = 1; j < call.tap_count; ++j)
    for (int v = 0; v < Vectors; ++v)
      sum[v] = hn::Add(sum[v], hn::Mul(load(call.taps[j], v), number(call.weights + j * call.weight_step, v)));
  for (int v = 0; v < Vectors; ++v) {
    if (call.bias != nullptr) sum[v] = hn::Add(sum[v], number(call.bias, v));
    if (v + 1 == Vectors)
      StoreSome(d, sum[v], call.out + at + v * lanes, some);
    else
      hn::StoreU(sum[v], d, call.out + at + v * lanes);
  }
}

template <bool Each, class T>
HWY_INLINE void Run(const FilterCall<T>& call) {
  constexpr int many = 4;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  const auto whole = static_cast<std::size_t>(lanes);
  std::int64_t at = 0;
  for (; at + many * lanes <= call.count; at += many * lanes) RunVectors<Each, many>(call, at, whole);
  for (; at < call.count; at += lanes) RunVectors<Each, 1>(call, at, std::min(whole, static_cast<std::size_t>(call.count - at)));
}

void RunF32(const FilterCall<float>& call) { call.each ? Run<true>(call) : Run<false>(call); }
void RunF64(const FilterCall<double>& call) { call.each ? Run<true>(call) : Run<false>(call); }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(RunF32);
HWY_EXPORT(RunF64);

void filter_run(const FilterCall<float>& call) { HWY_DYNAMIC_DISPATCH(RunF32)(call); }
void filter_run(const FilterCall<double>& call) { HWY_DYNAMIC_DISPATCH(RunF64)(call); }

}  // namespace millrace::cpu
#endif
