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

enum class Form { read, update, correct };

/// V vectors of a row that goes on as S does, of the last one `count` lanes.
template <int V, class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadPart(D d, const T* row, int v, std::size_t count) {
  const T* const from = row + static_cast<std::size_t>(v) * hn::Lanes(d);
  return v < V - 1 ? hn::LoadU(d, from) : LoadSome(d, from, count);
}
template <int V, class D, class T = hn::TFromD<D>>
HWY_INLINE void StorePart(D d, hn::Vec<D> value, T* row, int v, std::size_t count) {
  T* const to = row + static_cast<std::size_t>(v) * hn::Lanes(d);
  v < V - 1 ? hn::StoreU(value, d, to) : StoreSome(d, value, to, count);
}

/// Goes once through S, which becomes `next` where it changes, and leaves the sum of its products with `vector` in `total`.
template <int V, bool changes, bool decays, class D, class T = hn::TFromD<D>>
HWY_INLINE void FoldColumns(D d, const MatrixStep<T>& step, std::int64_t at, std::size_t count, const T* vector,
                            const hn::Vec<D> (&added)[V], hn::Vec<D> (&total)[V]) {
  // Copies, since a store may change the step as far as the compiler knows.
  const std::int64_t keys = step.keys, stride = step.values, decay_step = step.decay_step;
  const T *const key = step.key, *from = step.state + at, *decay = step.decay;
  T* next = changes ? step.next + at : nullptr;
  for (std::int64_t begin = 0; begin == 0 || begin < keys; begin += k_block) {
    hn::Vec<D> sum[V];
    for (int v = 0; v < V; ++v) sum[v] = hn::Zero(d);
    const std::int64_t end = std::min(keys, begin + k_block);
    for (std::int64_t i = begin; i < end; ++i) {
      const auto factor = hn::Set(d, decays ? *decay : T{1});
      const auto column = hn::Set(d, changes ? key[i] : T{});
      const auto by = hn::Set(d, vector[i]);
      for (int v = 0; v < V; ++v) {
        auto state = LoadPart<V>(d, from, v, count);
        if constexpr (decays) state = hn::Mul(state, factor);
        if constexpr (changes) {
          state = hn::Add(state, hn::Mul(column, added[v]));
          StorePart<V>(d, state, next, v, count);
        }
        sum[v] = hn::Add(sum[v], hn::Mul(state, by));
      }
      from += stride;
      if constexpr (changes) next += stride;
      if constexpr (decays) decay += decay_step;
    }
    for (int v = 0; v < V; ++v) total[v] = begin == 0 ? sum[v] : hn::Add(total[v], sum[v]);
  }
}

/// Columns [at, at + V vectors) of a step.
template <int V, Form form, bool decays, class T>
HWY_INLINE void RunColumns(const MatrixStep<T>& step, std::int64_t at, std::size_t count) {
  const hn::ScalableTag<T> d;
  hn::Vec<decltype(d)> added[V], total[V];
  for (int v = 0; v < V; ++v) added[v] = form == Form::read ? hn::Zero(d) : LoadPart<V>(d, step.added + at, v, count);
  if constexpr (form != Form::update) FoldColumns<V, false, decays>(d, step, at, count, step.key, added, total);
  if constexpr (form == Form::correct) {
    for (int v = 0; v < V; ++v) {
      added[v] = hn::Sub(added[v], total[v]);
      if (step.rate != nullptr) added[v] = hn::Mul(hn::Set(d, *step.rate), added[v]);
    }
  }
  if constexpr (form != Form::read) FoldColumns<V, true, decays>(d, step, at, count, step.query, added, total);
  for (int v = 0; v < V; ++v) StorePart<V>(d, total[v], step.read + at, v, count);
}

template <Form form, bool decays, class T>
void RunStep(const MatrixStep<T>& step) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t at = 0;
  // A wide part reads longer pieces of rows; its sums and what is added stay in registers. A correction goes twice through a part, which a first cache holds
  // where it is narrow.
  if constexpr (HWY_TARGET <= HWY_AVX3 && form != Form::correct)
    for (; at + 8 * lanes <= step.values; at += 8 * lanes) RunColumns<8, form, decays>(step, at, hn::Lanes(d));
  for (; at + 4 * lanes <= step.values; at += 4 * lanes) RunColumns<4, form, decays>(step, at, hn::Lanes(d));
  for (; at + 2 * lanes <= step.values; at += 2 * lanes) RunColumns<2, form, decays>(step, at, hn::Lanes(d));
  for (; at < step.values; at += lanes) RunColumns<1, form, decays>(step, at, static_cast<std::size_t>(std::min(lanes, step.values - at)));
}

template <Form form, class T>
void RunMatrix(const MatrixStep<T>& step) {
  step.decay == nullptr ? RunStep<form, false>(step) : RunStep<form, true>(step);
}

template <class T>
MatrixFunctions<T> Functions() {
  return {&RunMatrix<Form::read, T>, &RunMatrix<Form::update, T>, &RunMatrix<Form::correct, T>};
}
MatrixFunctions<float> FunctionsF32() { return Functions<float>(); }
MatrixFunctions<double> FunctionsF64() { return Functions<double>(); }

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
