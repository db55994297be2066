// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/square_sums.h>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/square_sums.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> Widened(D d, const float* x) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), x));
}
template <class D>
HWY_INLINE hn::Vec<D> Widened(D d, const double* x) {
  return hn::LoadU(d, x);
}

template <class T>
void Squares(const T* x, std::int64_t count, double* sums) {
  const hn::CappedTag<double, square_chains> d;
  constexpr auto lanes = static_cast<std::int64_t>(hn::MaxLanes(d)), parts = square_chains / lanes;
  hn::Vec<decltype(d)> part[parts];
  for (std::int64_t p = 0; p < parts; ++p) part[p] = hn::LoadU(d, sums + p * lanes);
  std::int64_t i = 0;
  for (; i + square_chains <= count; i += square_chains)
    for (std::int64_t p = 0; p < parts; ++p) {
      const auto value = Widened(d, x + i + p * lanes);
      part[p] = hn::Add(part[p], hn::Mul(value, value));
    }
  for (std::int64_t p = 0; p < parts; ++p) hn::StoreU(part[p], d, sums + p * lanes);
  for (std::int64_t chain = 0; i < count; ++i, ++chain) {
    const auto value = static_cast<double>(x[i]);
    sums[chain] += value * value;
  }
}

void SquaresF32(const float* x, std::int64_t count, double* sums) { Squares(x, count, sums); }
void SquaresF64(const double* x, std::int64_t count, double* sums) { Squares(x, count, sums); }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {
namespace cpu {

HWY_EXPORT(SquaresF32);
HWY_EXPORT(SquaresF64);

}  // namespace cpu

void square_sums(const float* x, std::int64_t count, double (&sums)[square_chains]) {
  using namespace cpu;
  HWY_DYNAMIC_DISPATCH(SquaresF32)(x, count, sums);
}
void square_sums(const double* x, std::int64_t count, double (&sums)[square_chains]) {
  using namespace cpu;
  HWY_DYNAMIC_DISPATCH(SquaresF64)(x, count, sums);
}

}  // namespace millrace
#endif
