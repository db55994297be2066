// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/conv_kernels.h>

#include <algorithm>

#define MILLRACE_LARGE
#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/conv_kernels.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/conv_ending-inl.h>
#include <millrace/kernels/cpu/partial-inl.h>
#include <millrace/kernels/cpu/tile-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {

/// How a tile reads the panel of places: from where it lies, from there to a packed copy, or from that copy, where no vector crosses a cache line.
enum class Reads { plane, plane_to_copy, copy };

/// Stores some lanes of vectors, the same of each of `Rows` units. No other element is touched.
template <class T, int Rows, class D>
HWY_INLINE void StoreLanes(D d, const hn::Vec<D> (&values)[Rows], const PlaceStore& store, T* to, std::int64_t stride) {
  to += store.to;
  if (static_cast<std::size_t>(store.count) == hn::Lanes(d)) {
    for (int row = 0; row < Rows; ++row) hn::StoreU(values[row], d, to + row * stride);
    return;
  }
#if HWY_TARGET == HWY_AVX3
  // From lane 0 on, wherever that would lie: lanes without a mask bit are in no memory.
  const auto last = static_cast<std::size_t>(store.first + store.count);
  const auto mask = hn::AndNot(hn::FirstN(d, static_cast<std::size_t>(store.first)), hn::FirstN(d, last));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(to) - static_cast<std::uintptr_t>(store.first) * sizeof(T);
  for (int row = 0; row < Rows; ++row)
    hn::BlendedStore(values[row], mask, d, reinterpret_cast<T*>(begin + static_cast<std::uintptr_t>(row * stride) * sizeof(T)));
#else
  // Lane `first` comes to lane 0.
  const hn::RebindToSigned<D> numbers;
  const auto wanted = hn::Iota(numbers, static_cast<hn::TFromD<decltype(numbers)>>(store.first));
  const auto lane = hn::IndicesFromVec(d, hn::And(wanted, hn::Set(numbers, static_cast<hn::TFromD<decltype(numbers)>>(hn::Lanes(d) - 1))));
  for (int row = 0; row < Rows; ++row)
    StoreSome(d, hn::TableLookupLanes(values[row], lane), to + row * stride, static_cast<std::size_t>(store.count));
#endif
}

struct TilePlace {
  std::int64_t begin, end, unit;  // of k, and the first unit
  const std::int32_t* stores;     // ConvCall::begins of the panel
};

/// Vectors `v` … of a tile behind its sums over one block of k: a loop that is unrolled, for sums stay in registers.
template <int v, class D, class T, int Rows, int Vectors>
HWY_INLINE void FinishVectors(D d, const ConvCall<T>& call, const TilePlace& at, const hn::Vec<D> (&sum)[Rows][Vectors]) {
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  hn::Vec<D> total[Rows];
  for (int row = 0; row < Rows; ++row) total[row] = sum[row][v];
  T* const sums = call.sums + at.unit * panel_vectors * lanes + v * lanes;
  if (at.begin > 0)
    for (int row = 0; row < Rows; ++row) total[row] = hn::Add(hn::LoadU(d, sums + row * panel_vectors * lanes), total[row]);
  if (at.end < call.k) {
    for (int row = 0; row < Rows; ++row) hn::StoreU(total[row], d, sums + row * panel_vectors * lanes);
  } else {
    if (call.bias != nullptr)
      for (int row = 0; row < Rows; ++row) total[row] = hn::Add(total[row], hn::Set(d, call.bias[at.unit + row]));
    if (call.relu || call.ending.kind != ConvEnding<T>::Kind::none)
      for (int row = 0; row < Rows; ++row) total[row] = TakeEnding(d, call.relu, call.ending, total[row]);
    T* const out = call.out + at.unit * call.out_stride;
    for (std::int32_t i = at.stores[v]; i < at.stores[v + 1]; ++i) StoreLanes<T, Rows>(d, total, call.stores[i], out, call.out_stride);
  }
  if constexpr (v + 1 < Vectors) FinishVectors<v + 1>(d, call, at, sum);
}

/// The sums of a tile over [begin, end) of k, from the places at `x` or in `copy`.
template <Reads How, class D, class T, int Rows, int Vectors, class V = hn::Vec<D>>
HWY_INLINE void SeePlaces(D d, const ConvCall<T>& call, const TilePlace& at, const T* x, [[maybe_unused]] hn::TFromD<D>* copy,
                          V (&sum)[Rows][Vectors]) {
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  [[maybe_unused]] constexpr std::uintptr_t next_panel = static_cast<std::uintptr_t>(Vectors * lanes) * sizeof(T);
  const std::int64_t stride = call.k;
  const T* weights = call.weights + at.unit * call.k;
  const std::int64_t* offsets = call.offsets;
  for (std::int64_t k = at.begin; k < at.end; ++k) {
    const T* from = How == Reads::copy ? copy : x + offsets[k];
    V weight[Rows];
    for (int row = 0; row < Rows; ++row) weight[row] = hn::Set(d, weights[row * stride + k]);
    for (int v = 0; v < Vectors; ++v) {
      const V seen = How == Reads::copy ? hn::Load(d, from + v * lanes) : hn::LoadU(d, from + v * lanes);
      if constexpr (How == Reads::plane_to_copy) {
        hn::Store(seen, d, copy + v * lanes);
        // Each k lies elsewhere: its places of the next panel come while the other units of this one are computed. An address, not a pointer: it may lie
        // behind the end.
        hwy::Prefetch(reinterpret_cast<const T*>(reinterpret_cast<std::uintptr_t>(from + v * lanes) + next_panel));
      }
      for (int row = 0; row < Rows; ++row) sum[row][v] = hn::MulAdd(weight[row], seen, sum[row][v]);
    }
    if constexpr (How != Reads::plane) copy += Vectors * lanes;
  }
}

/// `Rows` units from `unit` on of panel `panel`, over the k of one block. As Tile (tile-inl.h), with the places in the lanes and each k where `offsets` says: nothing is
/// unfolded. The code behind the sums is there once for all ways to read.
template <class T, int Rows, int Vectors>
HWY_NOINLINE void ConvTile(const ConvCall<T>& call, Reads how, std::int64_t begin, std::int64_t end, std::int64_t unit,
                           std::int64_t panel) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  constexpr std::int64_t width = panel_vectors * lanes;
  const T* x = call.x + panel * width;
  const std::int32_t* const stores = call.begins + panel * panel_vectors;
  T* const out = call.out + unit * call.out_stride;
  // Units lie far apart: their lines come while the sums are made.
  for (int v = 0; v < Vectors; ++v)
    if (stores[v] < stores[v + 1])
      for (int row = 0; row < Rows; ++row) hwy::Prefetch(out + row * call.out_stride + call.stores[stores[v]].to);
  const TilePlace at{begin, end, unit, stores};
  V sum[Rows][Vectors];
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < Vectors; ++v) sum[row][v] = hn::Zero(d);
  if constexpr (Vectors == panel_vectors) {
    if (how == Reads::copy)
      SeePlaces<Reads::copy>(d, call, at, x, call.copy + panel * call.k * width, sum);
    else if (how == Reads::plane_to_copy)
      SeePlaces<Reads::plane_to_copy>(d, call, at, x, call.copy + panel * call.k * width, sum);
    else
      SeePlaces<Reads::plane>(d, call, at, x, nullptr, sum);
  } else {
    SeePlaces<Reads::plane>(d, call, at, x, nullptr, sum);
  }
  FinishVectors<0>(d, call, at, sum);
}

template <class T, int Vectors = panel_vectors>
HWY_INLINE void RunTile(const ConvCall<T>& call, Reads how, std::int64_t begin, std::int64_t end, std::int64_t unit, std::int64_t panel,
                        int height) {
  switch (height) {
    case 1: return ConvTile<T, 1, Vectors>(call, how, begin, end, unit, panel);
    case 2: return ConvTile<T, 2, Vectors>(call, how, begin, end, unit, panel);
    case 3: return ConvTile<T, 3, Vectors>(call, how, begin, end, unit, panel);
#if HWY_TARGET == HWY_AVX3
    case 4: return ConvTile<T, 4, Vectors>(call, how, begin, end, unit, panel);
    case 5: return ConvTile<T, 5, Vectors>(call, how, begin, end, unit, panel);
    default: return ConvTile<T, 6, Vectors>(call, how, begin, end, unit, panel);
#else
    default: return;
#endif
  }
}

/// Blocks of k outside: all units read the same elements of a plane. The first tile of many copies them. Panels inside: a tile writes long rows of out.
template <class T>
void RunConv(const ConvCall<T>& call) {
  std::int64_t begin = 0, block = 0;
  do {  // once where there is no k: sums of nothing
    const std::int64_t end = std::min(call.k, begin + (call.block_k == nullptr ? k_block : call.block_k[block]));
    EachTile(call.units, wide_rows, [&](std::int64_t unit, int height) HWY_ATTR {
      for (std::int64_t panel = 0; panel < call.panels; ++panel) {
        const Reads how = call.copy == nullptr ? Reads::plane : unit == 0 ? Reads::plane_to_copy : Reads::copy;
        if (how != Reads::plane || call.vectors == panel_vectors)
          RunTile<T>(call, how, begin, end, unit, panel, height);
        else if (call.vectors == 1)
          RunTile<T, 1>(call, how, begin, end, unit, panel, height);
        else if (call.vectors == 2)
          RunTile<T, 2>(call, how, begin, end, unit, panel, height);
        else
          RunTile<T, 3>(call, how, begin, end, unit, panel, height);
      }
    });
    begin = end;
    ++block;
  } while (begin < call.k);
}

/// Results behind their relu and their ending, in memory, so that a compiler makes the code of an ending once for all heights of a tile.
template <class T>
HWY_NOINLINE void EndUnits(const UnitsCall<T>& call, T* to, std::int64_t vectors) {
  const hn::ScalableTag<T> d;
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  for (T* const end = to + vectors * lanes; to != end; to += lanes)
    hn::StoreU(TakeEnding(d, call.relu, call.ending, hn::LoadU(d, to)), d, to);
}

/// Vector `v` … of row `row` … of a tile behind its sums over one block of k; a loop that is unrolled, as FinishVectors.
template <int i, class D, class T, int Rows, int Vectors>
HWY_INLINE void FinishUnits(D d, const UnitsCall<T>& call, std::int64_t begin, std::int64_t end, T* to,
                            const hn::Vec<D> (&sum)[Rows][Vectors]) {
  constexpr int row = i / Vectors, v = i % Vectors;
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  T* const place = to + i * lanes;
  auto total = sum[row][v];
  if (begin > 0) total = hn::Add(hn::LoadU(d, place), total);
  if (end == call.k && call.bias != nullptr) total = hn::Add(total, hn::LoadU(d, call.bias + v * lanes));
  hn::StoreU(total, d, place);
  if constexpr (i + 1 < Rows * Vectors)
    FinishUnits<i + 1>(d, call, begin, end, to, sum);
  else if (end == call.k && (call.relu || call.ending.kind != ConvEnding<T>::Kind::none))
    EndUnits(call, to, Rows * Vectors);
}

/// The most places of a tile: narrow panels take more of them, or the multipliers would wait for their own results.
template <int Vectors>
inline constexpr int TallestUnits = HWY_TARGET == HWY_AVX3 && Vectors <= 2 ? 2 * tile_rows : tile_rows;

/// `Rows` places from `first` on, over the k of one block. The tiles of a block share out the lines of the next one, which come meanwhile: weights are read
/// from a far cache or memory once, and the tiles of few places are soon done with them.
template <class T, int Rows, int Vectors>
HWY_NOINLINE void UnitsTile(const UnitsCall<T>& call, std::int64_t begin, std::int64_t end, std::int64_t first) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  const T* places[Rows];
  for (int row = 0; row < Rows; ++row) places[row] = call.places[first + row];
  const T* weights = call.weights + begin * Vectors * lanes;
  constexpr int most = TallestUnits<Vectors>;
  const std::int64_t tile = (first + most - 1) / most, tiles = (call.rows + most - 1) / most, lines = (end - begin) * Vectors;
  // An address, not a pointer: it may lie behind the end.
  const auto ahead = reinterpret_cast<std::uintptr_t>(weights + lines * lanes);
  std::int64_t line = lines * tile / tiles;
  const std::int64_t last = lines * (tile + 1) / tiles, each = (Vectors + tiles - 1) / tiles,
                     apart = std::max<std::int64_t>(1, tiles / Vectors);
  V sum[Rows][Vectors];
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < Vectors; ++v) sum[row][v] = hn::Zero(d);
  for (std::int64_t k = begin; k < end;) {
#ifdef __clang__
#pragma clang loop unroll(disable)  // of four lines at most
#endif
    for (const std::int64_t stop = std::min(last, line + each); line < stop; ++line)
      hwy::Prefetch(reinterpret_cast<const T*>(ahead + static_cast<std::uintptr_t>(line * lanes) * sizeof(T)));
    for (const std::int64_t stop = std::min(end, k + apart); k < stop; ++k, weights += Vectors * lanes) {
      const std::int64_t offset = call.offsets[k];
      V weight[Vectors];
      for (int v = 0; v < Vectors; ++v) weight[v] = hn::LoadU(d, weights + v * lanes);
      for (int row = 0; row < Rows; ++row) {
        const V seen = hn::Set(d, places[row][offset]);
        for (int v = 0; v < Vectors; ++v) sum[row][v] = hn::MulAdd(weight[v], seen, sum[row][v]);
      }
    }
  }
  FinishUnits<0>(d, call, begin, end, call.sums + first * Vectors * lanes, sum);
}

template <class T, int Vectors, int Rows>
HWY_INLINE void RunUnitsTile(const UnitsCall<T>& call, std::int64_t begin, std::int64_t end, std::int64_t first, int height) {
  if constexpr (Rows > 1)
    if (height < Rows) return RunUnitsTile<T, Vectors, Rows - 1>(call, begin, end, first, height);
  UnitsTile<T, Rows, Vectors>(call, begin, end, first);
}

template <class T, int Vectors>
HWY_INLINE void RunUnitsOf(const UnitsCall<T>& call) {
  constexpr int most = TallestUnits<Vectors>;
  std::int64_t begin = 0;
  do {  // once where there is no k
    const std::int64_t end = std::min(call.k, begin + k_block);
    EachTile(call.rows, most,
             [&](std::int64_t first, int height) HWY_ATTR { RunUnitsTile<T, Vectors, most>(call, begin, end, first, height); });
    begin = end;
  } while (begin < call.k);
}

template <class T>
void RunUnits(const UnitsCall<T>& call) {
  switch (call.vectors) {
    case 1: return RunUnitsOf<T, 1>(call);
#if HWY_TARGET == HWY_AVX3
    case 2: return RunUnitsOf<T, 2>(call);
    case 3: return RunUnitsOf<T, 3>(call);
#endif
    default: return RunUnitsOf<T, panel_of>(call);
  }
}

void RunConvF32(const ConvCall<float>& call) { RunConv(call); }
void RunConvF64(const ConvCall<double>& call) { RunConv(call); }
void RunUnitsF32(const UnitsCall<float>& call) { RunUnits(call); }
void RunUnitsF64(const UnitsCall<double>& call) { RunUnits(call); }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(RunConvF32);
HWY_EXPORT(RunConvF64);
HWY_EXPORT(RunUnitsF32);
HWY_EXPORT(RunUnitsF64);

void conv_panel(const ConvCall<float>& call) { HWY_DYNAMIC_DISPATCH(RunConvF32)(call); }
void conv_panel(const ConvCall<double>& call) { HWY_DYNAMIC_DISPATCH(RunConvF64)(call); }
void conv_unit_panel(const UnitsCall<float>& call) { HWY_DYNAMIC_DISPATCH(RunUnitsF32)(call); }
void conv_unit_panel(const UnitsCall<double>& call) { HWY_DYNAMIC_DISPATCH(RunUnitsF64)(call); }

}  // namespace millrace::cpu
#endif
