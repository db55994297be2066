// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/adam.h>

#include <algorithm>
#include <cstddef>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/adam.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class T = hn::TFromD<D>>
HWY_INLINE void UpdateVector(D d, const AdamNumbers<T>& n, const T* g, T* w, T* m, T* v) {
  auto weight = hn::LoadU(d, w);
  auto slope = hn::LoadU(d, g);
  if (n.decoupled)
    weight = hn::Mul(weight, hn::Set(d, n.shrink));
  else
    slope = hn::Add(slope, hn::Mul(hn::Set(d, n.decay), weight));
  const auto first = hn::Add(hn::Mul(hn::Set(d, n.beta1), hn::LoadU(d, m)), hn::Mul(hn::Set(d, n.rest1), slope));
  const auto second = hn::Add(hn::Mul(hn::Set(d, n.beta2), hn::LoadU(d, v)), hn::Mul(hn::Set(d, n.rest2), hn::Mul(slope, slope)));
  const auto below = hn::Add(hn::Div(hn::Sqrt(second), hn::Set(d, n.root)), hn::Set(d, n.epsilon));
  hn::StoreU(first, d, m);
  hn::StoreU(second, d, v);
  hn::StoreU(hn::Sub(weight, hn::Mul(hn::Set(d, n.stride), hn::Div(first, below))), d, w);
}

template <class T>
void Update(const AdamNumbers<T>& numbers, const T* g, T* w, T* m, T* v, std::size_t count) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) UpdateVector(d, numbers, g + i, w + i, m + i, v + i);
  if (i == count) return;
  HWY_ALIGN T rest[4][hn::MaxLanes(d)] = {};
  T* const lanes_of[4] = {rest[0], rest[1], rest[2], rest[3]};
  const T* const from[4] = {g + i, w + i, m + i, v + i};
  for (int k = 0; k < 4; ++k) std::copy_n(from[k], count - i, lanes_of[k]);
  UpdateVector(d, numbers, rest[0], rest[1], rest[2], rest[3]);
  std::copy_n(rest[1], count - i, w + i);
  std::copy_n(rest[2], count - i, m + i);
  std::copy_n(rest[3], count - i, v + i);
}

void UpdateF32(const AdamNumbers<float>& numbers, const float* g, float* w, float* m, float* v, std::size_t count) {
  Update(numbers, g, w, m, v, count);
}
void UpdateF64(const AdamNumbers<double>& numbers, const double* g, double* w, double* m, double* v, std::size_t count) {
  Update(numbers, g, w, m, v, count);
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {
namespace cpu {

HWY_EXPORT(UpdateF32);
HWY_EXPORT(UpdateF64);

}  // namespace cpu

void adam_update(const AdamNumbers<float>& numbers, const float* g, float* w, float* m, float* v, std::int64_t count) {
  using namespace cpu;
  HWY_DYNAMIC_DISPATCH(UpdateF32)(numbers, g, w, m, v, static_cast<std::size_t>(count));
}
void adam_update(const AdamNumbers<double>& numbers, const double* g, double* w, double* m, double* v, std::int64_t count) {
  using namespace cpu;
  HWY_DYNAMIC_DISPATCH(UpdateF64)(numbers, g, w, m, v, static_cast<std::size_t>(count));
}

}  // namespace millrace
#endif
