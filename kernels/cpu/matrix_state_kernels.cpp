// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/matrix_state_kernels.h>

#include <algorithm>

#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/matrix_state_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/partial-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Columns [at, at + V vectors) of a step, of the last vector `count` lanes.
template <int V, bool updates, bool decays, class T>
HWY_INLINE void RunColumns(const MatrixStep<T>& step, std::int64_t at, std::size_t count) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto load = [&](const T* row, int v) HWY_ATTR {
    const T* const from = row + static_cast<std::size_t>(v) * lanes;
    return v < V - 1 ? hn::LoadU(d, from) : LoadSome(d, from, count);
  };
  const auto store = [&](hn::Vec<decltype(d)> value, T* row, int v) HWY_ATTR {
    T* const to = row + static_cast<std::size_t>(v) * lanes;
    v < V - 1 ? hn::StoreU(value, d, to) : StoreSome(d, value, to, count);
  };
  hn::Vec<decltype(d)> added[V], total[V];
  for (int v = 0; v < V; ++v) added[v] = updates ? load(step.added + at, v) : hn::Zero(d);
  for (std::int64_t begin = 0; begin == 0 || begin < step.keys; begin += k_block) {
    hn::Vec<decltype(d)> sum[V];
    for (int v = 0; v < V; ++v) sum[v] = hn::Zero(d);
    for (std::int64_t i = begin; i < std::min(step.keys, begin + k_block); ++i) {
      const auto key = hn::Set(d, step.key[i]);
      const auto decay = hn::Set(d, decays ? step.decay[i * step.decay_step] : T{1});
      const auto query = hn::Set(d, updates ? step.query[i] : T{});
      const T* const from = step.state + i * step.values + at;
      for (int v = 0; v < V; ++v) {
        auto state = load(from, v);
        if constexpr (decays) state = hn::Mul(state, decay);
        if constexpr (updates) {
          state = hn::Add(state, hn::Mul(key, added[v]));
          store(state, step.next + i * step.values + at, v);
        }
        sum[v] = hn::Add(sum[v], hn::Mul(state, updates ? query : key));
      }
    }
    for (int v = 0; v < V; ++v) total[v] = begin == 0 ? sum[v] : hn::Add(total[v], sum[v]);
  }
  for (int v = 0; v < V; ++v) store(total[v], step.read + at, v);
}

template <bool updates, bool decays, class T>
void RunStep(const MatrixStep<T>& step) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t at = 0;
  for (; at + 4 * lanes <= step.values; at += 4 * lanes) RunColumns<4, updates, decays>(step, at, hn::Lanes(d));
  for (; at < step.values; at += lanes)
    RunColumns<1, updates, decays>(step, at, static_cast<std::size_t>(std::min(lanes, step.values - at)));
}

template <bool updates, class T>
void RunMatrix(const MatrixStep<T>& step) {
  step.decay == nullptr ? RunStep<updates, false>(step) : RunStep<updates, true>(step);
}

MatrixFunctions<float> FunctionsF32() { return {&RunMatrix<false, float>, &RunMatrix<true, float>}; }
MatrixFunctions<double> FunctionsF64() { return {&RunMatrix<false, double>, &RunMatrix<true, double>}; }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(FunctionsF32);
HWY_EXPORT(FunctionsF64);

template <>
MatrixFunctions<float> matrix_functions<float>() {
  return HWY_DYNAMIC_DISPATCH(FunctionsF32)();
}
template <>
MatrixFunctions<double> matrix_functions<double>() {
  return HWY_DYNAMIC_DISPATCH(FunctionsF64)();
}

}  // namespace millrace::cpu
#endif
