// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/cumsum_kernels.h>

#include <algorithm>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/cumsum_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/partial-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// `V` vectors of columns, of which the last has `some` lanes.
template <int V, class T>
HWY_INLINE void RunVectors(const T* from, std::int64_t from_step, T* to, std::int64_t to_step, std::int64_t n, std::size_t some,
                           bool exclusive) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> sum[V];
  for (int v = 0; v < V; ++v) sum[v] = hn::Zero(d);
  for (std::int64_t i = 0; i < n; ++i) {
    for (int v = 0; v < V; ++v) {
      const std::size_t count = v + 1 == V ? some : static_cast<std::size_t>(lanes);
      const auto before = sum[v];
      sum[v] = hn::Add(sum[v], LoadSome(d, from + i * from_step + v * lanes, count));
      StoreSome(d, exclusive ? before : sum[v], to + i * to_step + v * lanes, count);
    }
  }
}

template <class T>
HWY_INLINE void Run(const T* from, std::int64_t from_step, T* to, std::int64_t to_step, std::int64_t n, std::int64_t columns,
                    bool exclusive) {
  if (columns == 1) {
    T sum{};
    for (std::int64_t i = 0; i < n; ++i) {
      const T next = sum + from[i * from_step];
      to[i * to_step] = exclusive ? sum : next;
      sum = next;
    }
    return;
  }
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  const auto whole = static_cast<std::size_t>(lanes);
  std::int64_t at = 0;
  for (; at + 4 * lanes <= columns; at += 4 * lanes) RunVectors<4>(from + at, from_step, to + at, to_step, n, whole, exclusive);
  for (; at < columns; at += lanes)
    RunVectors<1>(from + at, from_step, to + at, to_step, n, std::min(whole, static_cast<std::size_t>(columns - at)), exclusive);
}

void RunF32(const float* from, std::int64_t from_step, float* to, std::int64_t to_step, std::int64_t n, std::int64_t columns,
            bool exclusive) {
  Run(from, from_step, to, to_step, n, columns, exclusive);
}
void RunF64(const double* from, std::int64_t from_step, double* to, std::int64_t to_step, std::int64_t n, std::int64_t columns,
            bool exclusive) {
  Run(from, from_step, to, to_step, n, columns, exclusive);
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(RunF32);
HWY_EXPORT(RunF64);

void running_columns(const float* from, std::int64_t from_step, float* to, std::int64_t to_step, std::int64_t n, std::int64_t columns,
                     bool exclusive) {
  HWY_DYNAMIC_DISPATCH(RunF32)(from, from_step, to, to_step, n, columns, exclusive);
}
void running_columns(const double* from, std::int64_t from_step, double* to, std::int64_t to_step, std::int64_t n, std::int64_t columns,
                     bool exclusive) {
  HWY_DYNAMIC_DISPATCH(RunF64)(from, from_step, to, to_step, n, columns, exclusive);
}

}  // namespace millrace::cpu
#endif
