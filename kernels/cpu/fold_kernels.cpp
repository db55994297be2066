// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/fold_kernels.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/fold_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A term of one element and of a vector.
template <Term term>
struct TermOf {
  template <class T>
  static HWY_INLINE T one(T x) {
    return term == Term::element ? x : term == Term::magnitude ? std::abs(x) : x * x;
  }
  template <class V>
  static HWY_INLINE V all(V x) {
    if constexpr (term == Term::magnitude)
      return hn::Abs(x);
    else if constexpr (term == Term::square)
      return hn::Mul(x, x);
    else
      return x;
  }
};

/// sums[c] += Σ term over [0, n) of `Chains` chains.
template <int Chains, class F, class T>
HWY_INLINE void SumApart(F, const T* const* chains, std::int64_t n, T* sums) {
  T sum[Chains];
  for (int c = 0; c < Chains; ++c) sum[c] = sums[c];
  for (std::int64_t i = 0; i < n; ++i)
    for (int c = 0; c < Chains; ++c) sum[c] += F::one(chains[c][i]);
  for (int c = 0; c < Chains; ++c) sums[c] = sum[c];
}

/// Chains of additions that are computed together.
inline constexpr int most_chains = 32;
/// Chains of a vector, at most: so many are there whatever their count.
inline constexpr int pad = 8;

#if HWY_TARGET != HWY_SCALAR
/// The elements from `i` on of as many chains as there are lanes, 16 bytes of each: block 0 holds the first chain, block 1 the one half a vector on.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const T* const* chains, std::int64_t i, int chain) {
  constexpr int half = static_cast<int>(hn::MaxLanes(d)) / 2;
  if constexpr (sizeof(T) * hn::MaxLanes(d) == 32) {
    const hn::Half<D> part;
    return hn::Combine(d, hn::LoadU(part, chains[chain + half] + i), hn::LoadU(part, chains[chain] + i));
  } else {
    return hn::LoadU(d, chains[chain] + i);
  }
}

/// A vector has a lane for each chain: four elements (two of f64) of every chain are turned into so many vectors, one for each i.
template <class F, class D>
HWY_INLINE hn::Vec<D> SumBlocks(F, D d, const float* const* chains, std::int64_t i, hn::Vec<D> sum) {
  const hn::RepartitionToWide<hn::RebindToUnsigned<D>> wide;
  const auto low = [&](auto a, auto b)
                       HWY_ATTR { return hn::BitCast(d, hn::InterleaveLower(wide, hn::BitCast(wide, a), hn::BitCast(wide, b))); };
  const auto high = [&](auto a, auto b)
                        HWY_ATTR { return hn::BitCast(d, hn::InterleaveUpper(wide, hn::BitCast(wide, a), hn::BitCast(wide, b))); };
  const auto r0 = F::all(LoadBlocks(d, chains, i, 0)), r1 = F::all(LoadBlocks(d, chains, i, 1));
  const auto r2 = F::all(LoadBlocks(d, chains, i, 2)), r3 = F::all(LoadBlocks(d, chains, i, 3));
  const auto a = hn::InterleaveLower(d, r0, r1), b = hn::InterleaveLower(d, r2, r3);
  const auto c = hn::InterleaveUpper(d, r0, r1), e = hn::InterleaveUpper(d, r2, r3);
  sum = hn::Add(hn::Add(sum, low(a, b)), high(a, b));
  return hn::Add(hn::Add(sum, low(c, e)), high(c, e));
}
template <class F, class D>
HWY_INLINE hn::Vec<D> SumBlocks(F, D d, const double* const* chains, std::int64_t i, hn::Vec<D> sum) {
  const auto r0 = F::all(LoadBlocks(d, chains, i, 0)), r1 = F::all(LoadBlocks(d, chains, i, 1));
  return hn::Add(hn::Add(sum, hn::InterleaveLower(d, r0, r1)), hn::InterleaveUpper(d, r0, r1));
}

/// sums[c] = Σ term over [0, n) of `Vectors` vectors of chains.
template <int Vectors, class F, class D, class T = hn::TFromD<D>>
HWY_INLINE void SumLanes(F f, D d, const T* const* chains, std::int64_t n, T* sums) {
  constexpr auto step = static_cast<std::int64_t>(16 / sizeof(T));
  constexpr auto lanes = static_cast<int>(hn::MaxLanes(d));
  hn::Vec<D> sum[Vectors];
  for (int v = 0; v < Vectors; ++v) sum[v] = hn::Zero(d);
  // A cache line of each chain at a time: chains that are a power of two apart share few places of the cache.
  constexpr std::int64_t line = 64 / sizeof(T);
  std::int64_t i = 0;
  for (; i + line <= n; i += line)
    for (int v = 0; v < Vectors; ++v)
      for (std::int64_t at = i; at < i + line; at += step) sum[v] = SumBlocks(f, d, chains + v * lanes, at, sum[v]);
  for (; i + step <= n; i += step)
    for (int v = 0; v < Vectors; ++v) sum[v] = SumBlocks(f, d, chains + v * lanes, i, sum[v]);
  for (int v = 0; v < Vectors; ++v) hn::StoreU(sum[v], d, sums + v * lanes);
  for (; i < n; ++i)
    for (int c = 0; c < Vectors * lanes; ++c) sums[c] += F::one(chains[c][i]);
}
#endif

/// sums[c] = Σ term over n elements of each of `count` ≤ most_chains chains; both arrays have room for all, and the chains up to a
/// multiple of `pad` may be read.
template <class F, class T>
HWY_INLINE void SumChains(F f, const T* const* chains, int count, std::int64_t n, T* sums) {
  std::fill_n(sums, count, T{0});
  if (count == 1) return SumApart<1>(f, chains, n, sums);
  if (count == 2) return SumApart<2>(f, chains, n, sums);
#if HWY_TARGET == HWY_SCALAR
  for (int c = 0; c < count; c += 4) SumApart<4>(f, chains + c, n, sums + c);
#else
  const hn::CappedTag<T, 32 / sizeof(T)> d;
  constexpr auto lanes = static_cast<int>(hn::MaxLanes(d));
  int c = 0;
  for (; c + 3 * lanes < count; c += 4 * lanes) SumLanes<4>(f, d, chains + c, n, sums + c);
  for (; c + lanes < count; c += 2 * lanes) SumLanes<2>(f, d, chains + c, n, sums + c);
  for (; c < count; c += lanes) SumLanes<1>(f, d, chains + c, n, sums + c);
#endif
}

/// Chains that wait for others: a block of a row each.
template <class F, class T>
class Waiting {
 public:
  explicit Waiting(T* totals) : totals_(totals) {}

  HWY_INLINE void add(F f, const T* first, std::int64_t n, std::int64_t row, bool starts) {
    chains_[count_] = first;
    rows_[count_] = row;
    starts_[count_] = starts;
    if (++count_ == most_chains) finish(f, n);
  }
  /// All chains have n elements. The function is called, not inlined: it is large, and used four times.
  HWY_NOINLINE void finish(F f, std::int64_t n) {
    if (count_ == 0) return;
    for (int c = count_; c % pad != 0; ++c) chains_[c] = chains_[0];
    T sums[most_chains];
    SumChains(f, chains_, count_, n, sums);
    for (int c = 0; c < count_; ++c) totals_[rows_[c]] = starts_[c] ? sums[c] : totals_[rows_[c]] + sums[c];
    count_ = 0;
  }

 private:
  T* totals_;
  int count_ = 0;
  const T* chains_[most_chains];
  std::int64_t rows_[most_chains];
  bool starts_[most_chains];
};

template <class F, class T>
HWY_INLINE void SumRows(F f, const T* const* rows, std::int64_t count, std::int64_t n, T* sums) {
  Waiting<F, T> waiting(sums);
  const std::int64_t whole = n / k_block;
  for (std::int64_t row = 0; row < count; ++row)
    for (std::int64_t block = 0; block < whole; ++block) waiting.add(f, rows[row] + block * k_block, k_block, row, block == 0);
  waiting.finish(f, k_block);
  const std::int64_t rest = n % k_block;
  if (rest == 0 && n > 0) return;
  for (std::int64_t row = 0; row < count; ++row) waiting.add(f, rows[row] + whole * k_block, rest, row, whole == 0);
  waiting.finish(f, rest);
}

/// Calls f(Places<V>) for vectors of columns that cover all, up to four at a time. The last of them may overlap others. False for fewer columns than lanes.
template <int V>
struct Places {
  std::int64_t first, lanes, most;
  static constexpr int vectors = V;
  HWY_INLINE std::int64_t operator[](int v) const { return first + std::min(v * lanes, most); }
};
template <class T, class F>
HWY_INLINE bool EachPlaces(std::int64_t columns, F f) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  if (columns < lanes) return false;
  for (std::int64_t at = 0; at < columns; at += 4 * lanes) {
    const std::int64_t most = columns - lanes - at;
    switch (std::min<std::int64_t>(4, (columns - at + lanes - 1) / lanes)) {
      case 1: f(Places<1>{at, lanes, most}); break;
      case 2: f(Places<2>{at, lanes, most}); break;
      case 3: f(Places<3>{at, lanes, most}); break;
      default: f(Places<4>{at, lanes, most}); break;
    }
  }
  return true;
}

/// The sums of columns of `n` rows in the order of kernels/reduce.h.
template <int V, class F, class T>
HWY_INLINE void SumColumns(F, Places<V> places, const T* from, std::int64_t n, std::int64_t stride, T* to) {
  const hn::ScalableTag<T> d;
  hn::Vec<decltype(d)> total[V];
  for (std::int64_t begin = 0; begin == 0 || begin < n; begin += k_block) {
    hn::Vec<decltype(d)> part[V];
    for (int v = 0; v < V; ++v) part[v] = hn::Zero(d);
    for (std::int64_t i = begin; i < std::min(n, begin + k_block); ++i)
      for (int v = 0; v < V; ++v) part[v] = hn::Add(part[v], F::all(hn::LoadU(d, from + i * stride + places[v])));
    for (int v = 0; v < V; ++v) total[v] = begin == 0 ? part[v] : hn::Add(total[v], part[v]);
  }
  for (int v = 0; v < V; ++v) hn::StoreU(total[v], d, to + places[v]);
}

template <class F, class T>
void RunColumnSums(F f, const T* from, std::int64_t n, std::int64_t stride, std::int64_t columns, T* to) {
  if (EachPlaces<T>(columns, [&](auto places) HWY_ATTR { SumColumns(f, places, from, n, stride, to); })) return;
  for (std::int64_t at = 0; at < columns; ++at) {
    T total{};
    for (std::int64_t begin = 0; begin < n; begin += k_block) {
      T part{};
      for (std::int64_t i = begin; i < std::min(n, begin + k_block); ++i) part += F::one(from[i * stride + at]);
      total = begin == 0 ? part : total + part;
    }
    to[at] = total;
  }
}

template <class F>
auto WithTerm(Term term, F f) {
  switch (term) {
    case Term::magnitude: return f(TermOf<Term::magnitude>());
    case Term::square: return f(TermOf<Term::square>());
    default: return f(TermOf<Term::element>());
  }
}

// ---- Extremes ----

/// A comparison that NaN wins: of two elements the second where it is beyond the first.
template <bool greatest>
struct Beyond {
  template <class T>
  static constexpr T first() {
    return greatest ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
  }
  template <class T>
  static HWY_INLINE T one(T most, T x) {
    return (greatest ? x > most : x < most) || x != x ? x : most;
  }
  template <class V>
  static HWY_INLINE V all(V most, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
    // These instructions give their second operand where both are equal and where one is NaN.
    const V chosen = greatest ? hn::Max(x, most) : hn::Min(x, most);
#else
    const V chosen = hn::IfThenElse(greatest ? hn::Gt(x, most) : hn::Lt(x, most), x, most);
#endif
    return hn::IfThenElse(hn::IsNaN(x), x, chosen);
  }
  template <class D, class V>
  static HWY_INLINE V lanes(D d, V x) {
    return greatest ? hn::MaxOfLanes(d, x) : hn::MinOfLanes(d, x);
  }
  /// Without NaN, and of equal ones either.
  template <class V>
  static HWY_INLINE V either(V most, V x) {
    return greatest ? hn::Max(most, x) : hn::Min(most, x);
  }
};

/// Vectors of elements in any order; NaN and zero, whose bits the order decides, are looked for again in order.
template <class B, class T>
HWY_INLINE T ExtremeOf(B, const T* x, std::int64_t n) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  T most = B::template first<T>();
  bool ordered = n < 2 * lanes;
  if (!ordered) {
    constexpr int parts = 4;
    hn::Vec<decltype(d)> best[parts], strange = hn::Zero(d);
    for (int p = 0; p < parts; ++p) best[p] = hn::Set(d, most);
    const auto take = [&](int p, std::int64_t at) HWY_ATTR {
      const auto v = hn::LoadU(d, x + at);
      best[p] = B::either(best[p], v);
      strange = hn::Or(strange, hn::VecFromMask(d, hn::IsNaN(v)));
    };
    std::int64_t i = 0;
    for (; i + parts * lanes <= n; i += parts * lanes)
      for (int p = 0; p < parts; ++p) take(p, i + p * lanes);
    for (; i + lanes <= n; i += lanes) take(0, i);
    if (i < n) take(1, n - lanes);
    const hn::RebindToUnsigned<decltype(d)> du;
    if (hn::AllTrue(du, hn::Eq(hn::BitCast(du, strange), hn::Zero(du)))) {
      const auto all = B::either(B::either(best[0], best[1]), B::either(best[2], best[3]));
      most = hn::GetLane(B::lanes(d, all));
      if (most != T{0}) return most;
      return *std::find(x, x + n, T{0});
    }
  }
  for (std::int64_t i = 0; i < n; ++i) most = B::one(most, x[i]);
  return most;
}

template <int V, class B, class T>
HWY_INLINE void ExtremeColumns(B, Places<V> places, const T* from, std::int64_t n, std::int64_t stride, T* to) {
  const hn::ScalableTag<T> d;
  hn::Vec<decltype(d)> most[V];
  for (int v = 0; v < V; ++v) most[v] = hn::Set(d, B::template first<T>());
  for (std::int64_t i = 0; i < n; ++i)
    for (int v = 0; v < V; ++v) most[v] = B::all(most[v], hn::LoadU(d, from + i * stride + places[v]));
  for (int v = 0; v < V; ++v) hn::StoreU(most[v], d, to + places[v]);
}

template <class B, class T>
HWY_INLINE void RunColumnExtremes(B b, const T* from, std::int64_t n, std::int64_t stride, std::int64_t columns, T* to) {
  if (EachPlaces<T>(columns, [&](auto places) HWY_ATTR { ExtremeColumns(b, places, from, n, stride, to); })) return;
  for (std::int64_t at = 0; at < columns; ++at) {
    T most = B::template first<T>();
    for (std::int64_t i = 0; i < n; ++i) most = B::one(most, from[i * stride + at]);
    to[at] = most;
  }
}

template <class T>
HWY_INLINE std::int64_t PlaceOf(T value, bool last, const T* x, std::int64_t n) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto wanted = hn::Set(d, value);
  std::int64_t begin = 0, end = n;
  if (last) {
    while (end >= lanes && hn::AllFalse(d, hn::Eq(hn::LoadU(d, x + end - lanes), wanted))) end -= lanes;
    do --end;
    while (x[end] != value);
    return end;
  }
  while (begin + lanes <= n && hn::AllFalse(d, hn::Eq(hn::LoadU(d, x + begin), wanted))) begin += lanes;
  while (x[begin] != value) ++begin;
  return begin;
}

/// Rows are walked towards the one that wins: the last match that is met stays. Places are counted in the bits of an element.
template <int V, class T>
HWY_INLINE void PlaceColumns(Places<V> at, const T* values, bool last, const T* from, std::int64_t n, std::int64_t stride,
                             std::int64_t* to) {
  using Count = hwy::SignedFromSize<sizeof(T)>;
  const hn::ScalableTag<T> d;
  const hn::ScalableTag<Count> dn;
  hn::Vec<decltype(d)> wanted[V];
  hn::Vec<decltype(dn)> found[V];
  for (int v = 0; v < V; ++v) {
    wanted[v] = hn::LoadU(d, values + at[v]);
    found[v] = hn::Set(dn, static_cast<Count>(n));
  }
  for (std::int64_t step = 0; step < n; ++step) {
    const std::int64_t row = last ? step : n - 1 - step;
    const auto here = hn::Set(dn, static_cast<Count>(row));
    for (int v = 0; v < V; ++v) {
      const auto same = hn::RebindMask(dn, hn::Eq(hn::LoadU(d, from + row * stride + at[v]), wanted[v]));
      found[v] = hn::IfThenElse(same, here, found[v]);
    }
  }
  HWY_ALIGN Count counts[hn::MaxLanes(dn)];
  for (int v = 0; v < V; ++v) {
    hn::Store(found[v], dn, counts);
    std::copy_n(counts, hn::Lanes(dn), to + at[v]);
  }
}

template <class T>
HWY_INLINE void RunColumnPlaces(const T* values, bool last, const T* from, std::int64_t n, std::int64_t stride, std::int64_t columns,
                                std::int64_t* to) {
  const bool counts = n <= std::numeric_limits<hwy::SignedFromSize<sizeof(T)>>::max();
  if (counts && EachPlaces<T>(columns, [&](auto at) HWY_ATTR { PlaceColumns(at, values, last, from, n, stride, to); })) return;
  for (std::int64_t at = 0; at < columns; ++at) {
    to[at] = n;
    for (std::int64_t step = 0; step < n; ++step) {
      const std::int64_t row = last ? step : n - 1 - step;
      if (from[row * stride + at] == values[at]) to[at] = row;
    }
  }
}

/// Whether v stands before `other`, which has a place ahead of it: not where both are equal.
template <class T>
HWY_INLINE bool Beats(bool greatest, T v, T other) {
  if (v != v) return greatest && other == other;
  return greatest ? v > other : v < other || other != other;
}

/// Elements that do not beat the last of the best so far are passed over a vector at a time.
template <class T>
HWY_INLINE void BestOfRow(bool greatest, const T* x, std::int64_t n, std::int64_t count, T* values, std::int64_t* places) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr std::int64_t few = 16;  // so many are moved one by one
  const auto insert = [&](std::int64_t filled, std::int64_t i) HWY_ATTR {
    const T v = x[i];
    if (count <= few) {
      std::int64_t at = std::min(filled, count - 1);
      for (; at > 0 && Beats(greatest, v, values[at - 1]); --at) {
        values[at] = values[at - 1];
        places[at] = places[at - 1];
      }
      values[at] = v;
      places[at] = i;
      return;
    }
    std::int64_t low = 0, high = filled;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (Beats(greatest, v, values[middle]))
        high = middle;
      else
        low = middle + 1;
    }
    const auto behind = static_cast<std::size_t>(std::min(filled, count - 1) - low);
    std::memmove(values + low + 1, values + low, behind * sizeof(T));
    std::memmove(places + low + 1, places + low, behind * sizeof(std::int64_t));
    values[low] = v;
    places[low] = i;
  };
  for (std::int64_t i = 0; i < count; ++i) insert(i, i);
  if (count == 0) return;
  std::int64_t i = count;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i), worst = hn::Set(d, values[count - 1]);
    // Not beyond the worst: false where one is NaN.
    const auto stays = greatest ? hn::Le(v, worst) : hn::Ge(v, worst);
    if (hn::AllTrue(d, stays)) continue;
    for (std::int64_t at = i; at < i + lanes; ++at)
      if (Beats(greatest, x[at], values[count - 1])) insert(count, at);
  }
  for (; i < n; ++i)
    if (Beats(greatest, x[i], values[count - 1])) insert(count, i);
}

void SumsF32(Term term, const float* const* rows, std::int64_t count, std::int64_t n, float* sums) {
  WithTerm(term, [&](auto f) HWY_ATTR { SumRows(f, rows, count, n, sums); });
}
void SumsF64(Term term, const double* const* rows, std::int64_t count, std::int64_t n, double* sums) {
  WithTerm(term, [&](auto f) HWY_ATTR { SumRows(f, rows, count, n, sums); });
}
void ColumnSumsF32(Term term, const float* from, std::int64_t n, std::int64_t stride, std::int64_t columns, float* to) {
  WithTerm(term, [&](auto f) HWY_ATTR { RunColumnSums(f, from, n, stride, columns, to); });
}
void ColumnSumsF64(Term term, const double* from, std::int64_t n, std::int64_t stride, std::int64_t columns, double* to) {
  WithTerm(term, [&](auto f) HWY_ATTR { RunColumnSums(f, from, n, stride, columns, to); });
}
void ExtremesF32(bool greatest, const float* const* rows, std::int64_t count, std::int64_t n, float* to) {
  for (std::int64_t r = 0; r < count; ++r)
    to[r] = greatest ? ExtremeOf(Beyond<true>(), rows[r], n) : ExtremeOf(Beyond<false>(), rows[r], n);
}
void ExtremesF64(bool greatest, const double* const* rows, std::int64_t count, std::int64_t n, double* to) {
  for (std::int64_t r = 0; r < count; ++r)
    to[r] = greatest ? ExtremeOf(Beyond<true>(), rows[r], n) : ExtremeOf(Beyond<false>(), rows[r], n);
}
void ColumnExtremesF32(bool greatest, const float* from, std::int64_t n, std::int64_t stride, std::int64_t columns, float* to) {
  greatest ? RunColumnExtremes(Beyond<true>(), from, n, stride, columns, to)
           : RunColumnExtremes(Beyond<false>(), from, n, stride, columns, to);
}
void ColumnExtremesF64(bool greatest, const double* from, std::int64_t n, std::int64_t stride, std::int64_t columns, double* to) {
  greatest ? RunColumnExtremes(Beyond<true>(), from, n, stride, columns, to)
           : RunColumnExtremes(Beyond<false>(), from, n, stride, columns, to);
}
void ColumnPlacesF32(const float* values, bool last, const float* from, std::int64_t n, std::int64_t stride, std::int64_t columns,
                     std::int64_t* to) {
  RunColumnPlaces(values, last, from, n, stride, columns, to);
}
void ColumnPlacesF64(const double* values, bool last, const double* from, std::int64_t n, std::int64_t stride, std::int64_t columns,
                     std::int64_t* to) {
  RunColumnPlaces(values, last, from, n, stride, columns, to);
}
void BestOfRowF32(bool greatest, const float* x, std::int64_t n, std::int64_t count, float* values, std::int64_t* places) {
  BestOfRow(greatest, x, n, count, values, places);
}
void BestOfRowF64(bool greatest, const double* x, std::int64_t n, std::int64_t count, double* values, std::int64_t* places) {
  BestOfRow(greatest, x, n, count, values, places);
}
std::int64_t PlaceOfF32(float value, bool last, const float* x, std::int64_t n) { return PlaceOf(value, last, x, n); }
std::int64_t PlaceOfF64(double value, bool last, const double* x, std::int64_t n) { return PlaceOf(value, last, x, n); }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(SumsF32);
HWY_EXPORT(SumsF64);
HWY_EXPORT(ColumnSumsF32);
HWY_EXPORT(ColumnSumsF64);
HWY_EXPORT(ExtremesF32);
HWY_EXPORT(ExtremesF64);
HWY_EXPORT(ColumnExtremesF32);
HWY_EXPORT(ColumnExtremesF64);
HWY_EXPORT(ColumnPlacesF32);
HWY_EXPORT(ColumnPlacesF64);
HWY_EXPORT(BestOfRowF32);
HWY_EXPORT(BestOfRowF64);
HWY_EXPORT(PlaceOfF32);
HWY_EXPORT(PlaceOfF64);

void ordered_sums(Term term, const float* const* rows, std::int64_t count, std::int64_t n, float* sums) {
  HWY_DYNAMIC_DISPATCH(SumsF32)(term, rows, count, n, sums);
}
void ordered_sums(Term term, const double* const* rows, std::int64_t count, std::int64_t n, double* sums) {
  HWY_DYNAMIC_DISPATCH(SumsF64)(term, rows, count, n, sums);
}
void column_sums(Term term, const float* from, std::int64_t n, std::int64_t stride, std::int64_t columns, float* to) {
  HWY_DYNAMIC_DISPATCH(ColumnSumsF32)(term, from, n, stride, columns, to);
}
void column_sums(Term term, const double* from, std::int64_t n, std::int64_t stride, std::int64_t columns, double* to) {
  HWY_DYNAMIC_DISPATCH(ColumnSumsF64)(term, from, n, stride, columns, to);
}
void extremes(bool greatest, const float* const* rows, std::int64_t count, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(ExtremesF32)(greatest, rows, count, n, to);
}
void extremes(bool greatest, const double* const* rows, std::int64_t count, std::int64_t n, double* to) {
  HWY_DYNAMIC_DISPATCH(ExtremesF64)(greatest, rows, count, n, to);
}
void column_extremes(bool greatest, const float* from, std::int64_t n, std::int64_t stride, std::int64_t columns, float* to) {
  HWY_DYNAMIC_DISPATCH(ColumnExtremesF32)(greatest, from, n, stride, columns, to);
}
void column_extremes(bool greatest, const double* from, std::int64_t n, std::int64_t stride, std::int64_t columns, double* to) {
  HWY_DYNAMIC_DISPATCH(ColumnExtremesF64)(greatest, from, n, stride, columns, to);
}
void column_places(const float* values, bool last, const float* from, std::int64_t n, std::int64_t stride, std::int64_t columns,
                   std::int64_t* places) {
  HWY_DYNAMIC_DISPATCH(ColumnPlacesF32)(values, last, from, n, stride, columns, places);
}
void column_places(const double* values, bool last, const double* from, std::int64_t n, std::int64_t stride, std::int64_t columns,
                   std::int64_t* places) {
  HWY_DYNAMIC_DISPATCH(ColumnPlacesF64)(values, last, from, n, stride, columns, places);
}
void best_of_row(bool greatest, const float* x, std::int64_t n, std::int64_t count, float* values, std::int64_t* places) {
  HWY_DYNAMIC_DISPATCH(BestOfRowF32)(greatest, x, n, count, values, places);
}
void best_of_row(bool greatest, const double* x, std::int64_t n, std::int64_t count, double* values, std::int64_t* places) {
  HWY_DYNAMIC_DISPATCH(BestOfRowF64)(greatest, x, n, count, values, places);
}
std::int64_t place_of(float value, bool last, const float* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(PlaceOfF32)(value, last, x, n);
}
std::int64_t place_of(double value, bool last, const double* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(PlaceOfF64)(value, last, x, n);
}

}  // namespace millrace::cpu
#endif
