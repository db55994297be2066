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

/// Goes once through S of each of M matrices of the same form, which becomes `next` where it changes, and leaves the sums of its products with `vector` in
/// `total`. Additions of few columns wait for one another: those of another matrix fill the time.
template <int M, int V, bool changes, bool decays, class D, class T = hn::TFromD<D>>
HWY_INLINE void FoldColumns(D d, const MatrixStep<T>* steps, std::int64_t at, std::size_t count, const T* MatrixStep<T>::* vector,
                            const hn::Vec<D> (*added)[V], hn::Vec<D> (*total)[V]) {
  // Copies, since a store may change the steps as far as the compiler knows.
  const std::int64_t keys = steps[0].keys, stride = steps[0].values, decay_step = steps[0].decay_step;
  const T *key[M], *from[M], *decay[M], *by[M];
  T* next[M];
  for (int m = 0; m < M; ++m) {
    key[m] = steps[m].key;
    from[m] = steps[m].state + at;
    decay[m] = steps[m].decay;
    by[m] = steps[m].*vector;
    next[m] = changes ? steps[m].next + at : nullptr;
  }
  for (std::int64_t begin = 0; begin == 0 || begin < keys; begin += k_block) {
    hn::Vec<D> sum[M][V];
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < V; ++v) sum[m][v] = hn::Zero(d);
    const std::int64_t end = std::min(keys, begin + k_block);
    for (std::int64_t i = begin; i < end; ++i) {
      for (int m = 0; m < M; ++m) {
        const auto factor = hn::Set(d, decays ? *decay[m] : T{1});
        const auto column = hn::Set(d, changes ? key[m][i] : T{});
        const auto weight = hn::Set(d, by[m][i]);
        for (int v = 0; v < V; ++v) {
          auto state = LoadPart<V>(d, from[m], v, count);
          if constexpr (decays) state = hn::Mul(state, factor);
          if constexpr (changes) {
            state = hn::Add(state, hn::Mul(column, added[m][v]));
            StorePart<V>(d, state, next[m], v, count);
          }
          sum[m][v] = hn::Add(sum[m][v], hn::Mul(state, weight));
        }
        from[m] += stride;
        if constexpr (changes) next[m] += stride;
        if constexpr (decays) decay[m] += decay_step;
      }
    }
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < V; ++v) total[m][v] = begin == 0 ? sum[m][v] : hn::Add(total[m][v], sum[m][v]);
  }
}

/// Columns [at, at + V vectors) of a step of M matrices.
template <int M, int V, Form form, bool decays, class T>
HWY_INLINE void RunColumns(const MatrixStep<T>* steps, std::int64_t at, std::size_t count) {
  const hn::ScalableTag<T> d;
  hn::Vec<decltype(d)> added[M][V], total[M][V];
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < V; ++v) added[m][v] = form == Form::read ? hn::Zero(d) : LoadPart<V>(d, steps[m].added + at, v, count);
  if constexpr (form != Form::update) FoldColumns<M, V, false, decays>(d, steps, at, count, &MatrixStep<T>::key, added, total);
  if constexpr (form == Form::correct) {
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < V; ++v) {
        added[m][v] = hn::Sub(added[m][v], total[m][v]);
        if (steps[m].rate != nullptr) added[m][v] = hn::Mul(hn::Set(d, *steps[m].rate), added[m][v]);
      }
  }
  if constexpr (form != Form::read)
    for (int m = 0; m < M; ++m) FoldColumns<1, V, true, decays>(d, steps + m, at, count, &MatrixStep<T>::query, added + m, total + m);
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < V; ++v) StorePart<V>(d, total[m][v], steps[m].read + at, v, count);
}

template <int M, Form form, bool decays, class T>
void RunSteps(const MatrixStep<T>* steps) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t values = steps[0].values;
  std::int64_t at = 0;
  // A wide part reads longer pieces of rows; its sums and what is added stay in registers. A correction goes twice through a part, which a first cache holds
  // where it is narrow.
  if constexpr (M == 1) {
    if constexpr (HWY_TARGET <= HWY_AVX3 && form != Form::correct)
      for (; at + 8 * lanes <= values; at += 8 * lanes) RunColumns<M, 8, form, decays>(steps, at, hn::Lanes(d));
    for (; at + 4 * lanes <= values; at += 4 * lanes) RunColumns<M, 4, form, decays>(steps, at, hn::Lanes(d));
  }
  for (; at + 2 * lanes <= values; at += 2 * lanes) RunColumns<M, 2, form, decays>(steps, at, hn::Lanes(d));
  for (; at + lanes <= values; at += lanes) RunColumns<M, 1, form, decays>(steps, at, hn::Lanes(d));
  if (at < values) RunColumns<M, 1, form, decays>(steps, at, static_cast<std::size_t>(values - at));
}

template <Form form, class T>
void RunMatrix(const MatrixStep<T>& step) {
  step.decay == nullptr ? RunSteps<1, form, false>(&step) : RunSteps<1, form, true>(&step);
}
template <class T>
void CorrectTwo(const MatrixStep<T> (&steps)[2]) {
  steps[0].decay == nullptr ? RunSteps<2, Form::correct, false>(steps) : RunSteps<2, Form::correct, true>(steps);
}

template <class T>
MatrixFunctions<T> Functions() {
  return {&RunMatrix<Form::read, T>, &RunMatrix<Form::update, T>, &RunMatrix<Form::correct, T>, &CorrectTwo<T>};
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
