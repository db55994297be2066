// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/pool_kernels.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/pool_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/partial-inl.h>

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

/// The taps of a window: `Taps`, of which a loop needs no branch, or any number where that is 0.
template <int Taps, class T>
HWY_INLINE std::int64_t TapsOf(const typename StripCall<T>::Axis& axis) {
  return Taps > 0 ? Taps : axis.kernel;
}

/// One row of a strip, folded along its column: `load(row)` is a vector of the plane.
template <int Taps, class T, class F, class Load>
HWY_INLINE hn::Vec<hn::ScalableTag<T>> FoldColumn(const StripCall<T>& call, std::int64_t start, bool inside, F f, Load load) {
  const hn::ScalableTag<T> d;
  const typename StripCall<T>::Axis& down = call.down;
  if (inside) {
    auto total = load(start);
    for (std::int64_t tap = 1; tap < TapsOf<Taps, T>(down); ++tap) total = f(total, load(start + tap * down.dilation));
    return total;
  }
  const auto padding = hn::Set(d, call.padding);
  auto total = start < 0 || start >= call.rows ? padding : load(start);
  for (std::int64_t tap = 1; tap < down.kernel; ++tap) {
    const std::int64_t row = start + tap * down.dilation;
    total = f(total, row < 0 || row >= call.rows ? padding : load(row));
  }
  return total;
}

/// The rows of a strip folded along their columns, into the room. A row that is shorter than a vector is stored with padding behind it, where the next
/// row follows: a store through a mask is read late.
template <int Taps, class T, class F>
HWY_INLINE void FoldDown(const StripCall<T>& call, F f) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto some = static_cast<std::size_t>(std::min(lanes, call.columns));
  const auto there = hn::FirstN(d, some);
  const auto padding = hn::Set(d, call.padding);
  T* to = call.room + call.along.before;
  for (std::int64_t i = 0; i < call.count; ++i, to += call.width) {
    const std::int64_t start = (call.first + i) * call.down.stride - call.down.before;
    const bool inside = start >= 0 && start + (call.down.kernel - 1) * call.down.dilation < call.rows;
    const bool whole = EachVector(lanes, call.columns, [&](std::int64_t column) HWY_ATTR {
      hn::StoreU(FoldColumn<Taps>(call, start, inside, f,
                                  [&](std::int64_t row) HWY_ATTR { return hn::LoadU(d, call.plane + row * call.columns + column); }),
                 d, to + column);
    });
    if (whole) continue;
    const auto folded = FoldColumn<Taps>(call, start, inside, f,
                                         [&](std::int64_t row) HWY_ATTR { return LoadSome(d, call.plane + row * call.columns, some); });
    hn::StoreU(hn::IfThenElse(there, folded, padding), d, to);
  }
}

/// Rows of the room folded along themselves.
template <int Taps, class T, class F>
HWY_INLINE void FoldAlong(const StripCall<T>& call, F f) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const typename StripCall<T>::Axis& along = call.along;
  const std::int64_t taps = TapsOf<Taps, T>(along);
  const auto folded = [&](const T* from) HWY_ATTR {
    if (along.stride == 1) {
      V total = hn::LoadU(d, from);
      for (std::int64_t tap = 1; tap < taps; ++tap) total = f(total, hn::LoadU(d, from + tap * along.dilation));
      return total;
    }
    V even, odd;
    hn::LoadInterleaved2(d, from, even, odd);
    V total = taps > 1 ? f(even, odd) : even;
    for (std::int64_t tap = 2; tap < taps; tap += 2) {
      hn::LoadInterleaved2(d, from + tap, even, odd);
      total = f(total, even);
      if (tap + 1 < taps) total = f(total, odd);
    }
    return total;
  };
  const T* from = call.room;
  T* out = call.out;
  for (std::int64_t i = 0; i < call.count; ++i, from += call.width, out += call.out_columns) {
    const bool whole = EachVector(lanes, call.out_columns,
                                  [&](std::int64_t first) HWY_ATTR { hn::StoreU(folded(from + first * along.stride), d, out + first); });
    if (whole) continue;
#if HWY_TARGET == HWY_AVX3
    hn::BlendedStore(folded(from), hn::FirstN(d, static_cast<std::size_t>(call.out_columns)), d, out);
#else
    StoreSome(d, folded(from), out, static_cast<std::size_t>(call.out_columns));
#endif
  }
}

template <class T, class F>
HWY_NOINLINE void FoldStrip(const StripCall<T>& call, F f) {
  if constexpr (sizeof(T) == 4) {  // f64 is rare
    if (call.down.kernel == call.along.kernel) {
      const auto run = [&](auto taps) HWY_ATTR {
        FoldDown<decltype(taps)::value>(call, f);
        FoldAlong<decltype(taps)::value>(call, f);
      };
      if (call.down.kernel == 2) return run(std::integral_constant<int, 2>());
      if (call.down.kernel == 3) return run(std::integral_constant<int, 3>());
      if (call.down.kernel == 5) return run(std::integral_constant<int, 5>());
    }
  }
  FoldDown<0>(call, f);
  FoldAlong<0>(call, f);
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
void FoldStripF32(const StripCall<float>& call, Binary fold) {
  WithFold(fold, [&](auto f) HWY_ATTR { FoldStrip(call, f); });
}
void FoldStripF64(const StripCall<double>& call, Binary fold) {
  WithFold(fold, [&](auto f) HWY_ATTR { FoldStrip(call, f); });
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(FoldF32);
HWY_EXPORT(FoldF64);
HWY_EXPORT(FoldRowsF32);
HWY_EXPORT(FoldRowsF64);
HWY_EXPORT(FoldStripF32);
HWY_EXPORT(FoldStripF64);

void fold_windows(const WindowCall<float>& call, Binary fold, float* out) { HWY_DYNAMIC_DISPATCH(FoldF32)(call, fold, out); }
void fold_windows(const WindowCall<double>& call, Binary fold, double* out) { HWY_DYNAMIC_DISPATCH(FoldF64)(call, fold, out); }
void fold_rows(const RowsCall<float>& call, Binary fold, float* to) { HWY_DYNAMIC_DISPATCH(FoldRowsF32)(call, fold, to); }
void fold_rows(const RowsCall<double>& call, Binary fold, double* to) { HWY_DYNAMIC_DISPATCH(FoldRowsF64)(call, fold, to); }
void fold_strip(const StripCall<float>& call, Binary fold) { HWY_DYNAMIC_DISPATCH(FoldStripF32)(call, fold); }
void fold_strip(const StripCall<double>& call, Binary fold) { HWY_DYNAMIC_DISPATCH(FoldStripF64)(call, fold); }

}  // namespace millrace::cpu
#endif
