// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/pool_kernels.h>

#include <cstring>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/pool_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Each fold of a vector beside the same of an element, with the bits of span_kernels.cpp.
struct Greatest {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::Not(hn::Eq(a, a))), a, b);
  }
  template <class T>
  HWY_INLINE T of(T a, T b) const {
    return ((a > b) | (a != a)) ? a : b;
  }
};
struct Least {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::Not(hn::Eq(a, a))), a, b);
  }
  template <class T>
  HWY_INLINE T of(T a, T b) const {
    return ((a < b) | (a != a)) ? a : b;
  }
};
struct Sum {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
  template <class T>
  HWY_INLINE T of(T a, T b) const {
    return a + b;
  }
};

/// f(first) for whole vectors of `count` elements, the last of which ends with them and may begin among those of the one before. False, and no call, where
/// there is no whole one.
template <class F>
HWY_INLINE bool EachVector(std::int64_t lanes, std::int64_t count, F f) {
  if (count < lanes) return false;
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) f(i);
  if (i < count) f(count - lanes);
  return true;
}

/// As many windows as fill whole vectors, where their elements come apart in registers: side by side, every second element, or windows of 3 or 4 that
/// fill their row. The number of windows done.
template <class T, class F>
HWY_INLINE std::int64_t WholeVectors(const WindowCall<T>& call, T* out, F f) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  if (call.stride == 1) {
    const bool some = EachVector(lanes, call.count, [&](std::int64_t first) HWY_ATTR {
      V total = hn::LoadU(d, call.from + first);
      for (std::int64_t tap = 1; tap < call.kernel; ++tap) total = f(total, hn::LoadU(d, call.from + first + tap * call.dilation));
      hn::StoreU(total, d, out + first);
    });
    return some ? call.count : 0;
  }
  if (call.dilation != 1 && call.kernel > 1) return 0;
  if (call.stride == 2) {
    // Elements are loaded in pairs: the pair of the last element of a window ends beyond it.
    const std::int64_t windows = call.count - (call.kernel % 2 != 0 ? 1 : 0);
    const bool some = EachVector(lanes, windows, [&](std::int64_t begin) HWY_ATTR {
      const T* const from = call.from + 2 * begin;
      V even, odd;
      hn::LoadInterleaved2(d, from, even, odd);
      V total = call.kernel > 1 ? f(even, odd) : even;
      for (std::int64_t tap = 2; tap < call.kernel; tap += 2) {
        hn::LoadInterleaved2(d, from + tap, even, odd);
        total = f(total, even);
        if (tap + 1 < call.kernel) total = f(total, odd);
      }
      hn::StoreU(total, d, out + begin);
    });
    return some ? windows : 0;
  }
  if (call.kernel != call.stride) return 0;
  V first, second, third, fourth;
  if (call.stride == 3) {
    for (; i + lanes <= call.count; i += lanes) {
      hn::LoadInterleaved3(d, call.from + 3 * i, first, second, third);
      hn::StoreU(f(f(first, second), third), d, out + i);
    }
  } else if (call.stride == 4) {
    for (; i + lanes <= call.count; i += lanes) {
      hn::LoadInterleaved4(d, call.from + 4 * i, first, second, third, fourth);
      hn::StoreU(f(f(f(first, second), third), fourth), d, out + i);
    }
  }
  return i;
}

template <class T, class F>
HWY_NOINLINE void FoldEach(const WindowCall<T>& call, T* out, F f) {
  for (std::int64_t i = WholeVectors(call, out, f); i < call.count; ++i) {
    const T* from = call.from + i * call.stride;
    T total = *from;
    for (std::int64_t tap = 1; tap < call.kernel; ++tap) total = f.of(total, from[tap * call.dilation]);
    out[i] = total;
  }
}

template <class T, class F>
HWY_NOINLINE void FoldOver(const RowsCall<T>& call, T* to, F f) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V padding = hn::Set(d, call.padding);
  const bool some = EachVector(lanes, call.length, [&](std::int64_t i) HWY_ATTR {
    V total = call.rows[0] == nullptr ? padding : hn::LoadU(d, call.rows[0] + i);
    for (std::int64_t row = 1; row < call.count; ++row)
      total = f(total, call.rows[row] == nullptr ? padding : hn::LoadU(d, call.rows[row] + i));
    hn::StoreU(total, d, to + i);
  });
  for (std::int64_t i = 0; !some && i < call.length; ++i) {
    T total = call.rows[0] == nullptr ? call.padding : call.rows[0][i];
    for (std::int64_t row = 1; row < call.count; ++row) total = f.of(total, call.rows[row] == nullptr ? call.padding : call.rows[row][i]);
    to[i] = total;
  }
}

template <class F>
HWY_INLINE void WithFold(Binary fold, F f) {
  if (fold == Binary::maximum) return f(Greatest());
  if (fold == Binary::minimum) return f(Least());
  f(Sum());
}

template <class T>
HWY_INLINE void Fold(const WindowCall<T>& call, Binary fold, T* out) {
  if (call.kernel == 1 && call.stride == 1) {
    std::memcpy(out, call.from, static_cast<std::size_t>(call.count) * sizeof(T));
    return;
  }
  WithFold(fold, [&](auto f) HWY_ATTR { FoldEach(call, out, f); });
}

void FoldF32(const WindowCall<float>& call, Binary fold, float* out) { Fold(call, fold, out); }
void FoldF64(const WindowCall<double>& call, Binary fold, double* out) { Fold(call, fold, out); }
void FoldRowsF32(const RowsCall<float>& call, Binary fold, float* to) {
  WithFold(fold, [&](auto f) HWY_ATTR { FoldOver(call, to, f); });
}
void FoldRowsF64(const RowsCall<double>& call, Binary fold, double* to) {
  WithFold(fold, [&](auto f) HWY_ATTR { FoldOver(call, to, f); });
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(FoldF32);
HWY_EXPORT(FoldF64);
HWY_EXPORT(FoldRowsF32);
HWY_EXPORT(FoldRowsF64);

void fold_windows(const WindowCall<float>& call, Binary fold, float* out) { HWY_DYNAMIC_DISPATCH(FoldF32)(call, fold, out); }
void fold_windows(const WindowCall<double>& call, Binary fold, double* out) { HWY_DYNAMIC_DISPATCH(FoldF64)(call, fold, out); }
void fold_rows(const RowsCall<float>& call, Binary fold, float* to) { HWY_DYNAMIC_DISPATCH(FoldRowsF32)(call, fold, to); }
void fold_rows(const RowsCall<double>& call, Binary fold, double* to) { HWY_DYNAMIC_DISPATCH(FoldRowsF64)(call, fold, to); }

}  // namespace millrace::cpu
#endif
