// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/gru_kernels.h>

#include <algorithm>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/gru_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/elementary-inl.h>
#include <millrace/kernels/cpu/partial-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
void RunGates(const GruGates<T>& gates) {
  const hn::ScalableTag<T> d;
  const std::int64_t hidden = gates.hidden, lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t unit = 0; unit < hidden; unit += lanes) {
    const auto count = static_cast<std::size_t>(std::min(lanes, hidden - unit));
    const auto of = [&](const T* row) HWY_ATTR { return LoadSome(d, row + unit, count); };
    const auto sum = [&](const T* sums, const T* bias) HWY_ATTR { return bias == nullptr ? of(sums) : hn::Add(of(sums), of(bias)); };
    const T* const z_bias = gates.gates_bias == nullptr ? nullptr : gates.gates_bias + hidden;
    const auto r = Sigmoid(d, hn::Add(sum(gates.sums, gates.gates_bias), of(gates.x)));
    const auto z = Sigmoid(d, hn::Add(sum(gates.sums + hidden, z_bias), of(gates.x + hidden)));
    const auto n = Tanh(d, hn::Add(of(gates.x_candidate), hn::Mul(r, sum(gates.candidate, gates.candidate_bias))));
    const auto rest = hn::Sub(hn::Set(d, *gates.one), z);
    const auto h = of(gates.h);
    StoreSome(d, gates.turned ? hn::Add(hn::Mul(rest, h), hn::Mul(z, n)) : hn::Add(hn::Mul(z, h), hn::Mul(rest, n)), gates.out + unit,
              count);
  }
}

GruFunction<float> GatesF32() { return &RunGates<float>; }
GruFunction<double> GatesF64() { return &RunGates<double>; }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(GatesF32);
HWY_EXPORT(GatesF64);

template <>
GruFunction<float> gru_function<float>() {
  return HWY_DYNAMIC_DISPATCH(GatesF32)();
}
template <>
GruFunction<double> gru_function<double>() {
  return HWY_DYNAMIC_DISPATCH(GatesF64)();
}

}  // namespace millrace::cpu
#endif
