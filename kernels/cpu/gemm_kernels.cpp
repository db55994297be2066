// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/gemm_kernels.h>

#include <cstring>
#include <type_traits>

#include <hwy/cache_control.h>
#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/gemm_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/partial-inl.h>
#include <millrace/kernels/cpu/tile-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {

/// Factor, bias and addend behind the total, for columns [column, column + count) of one row; `count` ≤ lanes.
template <class T, class D, class V = hn::Vec<D>>
HWY_INLINE V Finish(D d, const MatrixCall<T>& call, V value, const T* bias, const T* there) {
  if (call.alpha != T{1}) value = hn::Mul(hn::Set(d, call.alpha), value);
  if (bias != nullptr) value = hn::Add(value, hn::LoadU(d, bias));
  if (call.beta == T{0}) return value;
  const V old = hn::LoadU(d, there);
  return hn::Add(value, call.beta == T{1} ? old : hn::Mul(hn::Set(d, call.beta), old));
}

/// Finish of columns that stand side by side and are no whole vector.
template <class T, class D>
HWY_INLINE void FinishSome(D d, const MatrixCall<T>& call, const T* total, std::int64_t column, std::size_t count, T* row) {
  auto value = hn::Load(d, total);
  if (call.alpha != T{1}) value = hn::Mul(hn::Set(d, call.alpha), value);
  if (call.bias != nullptr) value = hn::Add(value, LoadSome(d, call.bias + column, count));
  if (call.beta != T{0}) {
    const auto old = LoadSome(d, row + column, count);
    value = hn::Add(value, call.beta == T{1} ? old : hn::Mul(hn::Set(d, call.beta), old));
  }
  StoreSome(d, value, row + column, count);
}

/// Columns that do not stand side by side go through a vector on the stack.
template <class T, class D>
HWY_INLINE void FinishApart(D d, const MatrixCall<T>& call, const T* total, std::int64_t column, std::int64_t count, T* row) {
  HWY_ALIGN T bias[hn::MaxLanes(d)] = {};
  HWY_ALIGN T there[hn::MaxLanes(d)] = {};
  HWY_ALIGN T result[hn::MaxLanes(d)];
  if (call.bias != nullptr) std::memcpy(bias, call.bias + column, static_cast<std::size_t>(count) * sizeof(T));
  if (call.beta != T{0})
    for (std::int64_t i = 0; i < count; ++i) there[i] = row[(column + i) * call.column_stride];
  hn::Store(Finish(d, call, hn::Load(d, total), call.bias == nullptr ? nullptr : bias, there), d, result);
  for (std::int64_t i = 0; i < count; ++i) row[(column + i) * call.column_stride] = result[i];
}

/// Writes `vectors` vectors of totals that begin at `column`.
template <class T>
HWY_INLINE void FinishRow(const MatrixCall<T>& call, const T* total, int vectors, std::int64_t column, T* row) {
  const hn::ScalableTag<T> d;
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  for (int v = 0; v < vectors; ++v, column += lanes, total += lanes) {
    const std::int64_t count = std::min(lanes, call.columns - column);
    if (call.column_stride != 1) {
      FinishApart(d, call, total, column, count, row);
      continue;
    }
    if (count < lanes) {
      FinishSome(d, call, total, column, static_cast<std::size_t>(count), row);
      continue;
    }
    const T* bias = call.bias == nullptr ? nullptr : call.bias + column;
    hn::StoreU(Finish(d, call, hn::Load(d, total), bias, row + column), d, row + column);
  }
}

/// The groups of panels that go together, in order: as many as `most` where they are whole, then a pair, then each alone.
class PanelGroups {
 public:
  PanelGroups(std::int64_t first, std::int64_t last, std::int64_t whole, std::int64_t most)
      : first_(first), most_(most), full_(std::max<std::int64_t>(0, whole - first) / most) {
    const std::int64_t left = std::max<std::int64_t>(0, whole - first - full_ * most);
    pairs_ = most > 2 ? left / 2 : 0;
    count_ = full_ + pairs_ + (last - first - full_ * most - 2 * pairs_);
  }
  std::int64_t count() const { return count_; }
  std::int64_t panels(std::int64_t at) const { return at < full_ ? most_ : at < full_ + pairs_ ? 2 : 1; }
  std::int64_t panel(std::int64_t at) const {
    const std::int64_t full = std::min(at, full_), pairs = std::min(at - full, pairs_);
    return first_ + full * most_ + 2 * pairs + (at - full - pairs);
  }

 private:
  std::int64_t first_, most_, full_, pairs_ = 0, count_ = 0;
};

template <class T, class W>
void RunMatrix(const MatrixCall<T>& call, const W* b) {
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  constexpr std::int64_t width = panel_of * lanes;
  constexpr bool narrow = !std::is_same_v<T, W>;
  const int most =
      narrow && call.rows <= widest_rows ? 8 : VectorsOf(call.rows, call.k * call.columns * static_cast<std::int64_t>(sizeof(T)));
  const bool plain = call.alpha == T{1} && call.beta == T{0} && call.column_stride == 1;
  const std::int64_t whole = std::min(call.last_panel, (call.columns + lanes - 1) / lanes / panel_of);
  const PanelGroups groups(call.first_panel, call.last_panel, whole, most / panel_of);
  constexpr std::int64_t together = narrow ? 2 : 1;
  // Rows of b that lie apart, where it is not packed, are no run of lines.
  const NextPanel<W> next_panel(call.b_stride == 0 ? call.rows : 0, call.k, width);
  for (std::int64_t at = 0; at < groups.count(); ++at) {
    const std::int64_t next = call.backwards ? groups.count() - 1 - at : at, panel = groups.panel(next);
    const std::int64_t column = panel * width;
    const std::int64_t vectors_left = (call.columns - column + lanes - 1) / lanes;
    const auto vectors = static_cast<int>(std::min(groups.panels(next) * panel_of, vectors_left));
    const std::int64_t stride = call.b_stride != 0 ? call.b_stride : std::min<std::int64_t>(vectors, panel_of) * lanes * together;
    const W* here = b + panel * call.panel_stride;
    const std::int64_t after = call.backwards ? next - 1 : next + 1;
    const W* const behind = at + 1 < groups.count() ? b + groups.panel(after) * call.panel_stride : nullptr;
    if (plain && column + vectors * lanes <= call.columns) {  // nothing but a bias comes behind the totals
      EachTile(call.rows, TallestOf(call.rows), [&](std::int64_t first, int height) HWY_ATTR {
        const Fetched fetched = next_panel.part(behind, here, first, height);
        TileFor<T, W>(height, vectors)(call.a + first, call.k, here, stride, call.panel_stride, call.out + first, column, fetched.from,
                                       fetched.step);
        if (call.bias == nullptr) return;
        const hn::ScalableTag<T> d;
        for (int v = 0; v < vectors; ++v) {
          const auto bias = hn::LoadU(d, call.bias + column + v * lanes);
          for (int row = 0; row < height; ++row) {
            T* const there = call.out[first + row] + column + v * lanes;
            hn::StoreU(hn::Add(hn::LoadU(d, there), bias), d, there);
          }
        }
      });
    } else {
      TileRoom<T> room(vectors);
      const bool reads = call.beta != T{0} && call.column_stride == 1;
      EachTile(call.rows, TallestOf(call.rows), [&](std::int64_t first, int height) HWY_ATTR {
        for (int row = 0; reads && row < height; ++row)  // there when the totals are
          for (std::int64_t v = 0; v < vectors; ++v) hwy::Prefetch(call.out[first + row] + column + v * lanes);
        const Fetched fetched = next_panel.part(behind, here, first, height);
        TileFor<T, W>(height, vectors)(call.a + first, call.k, here, stride, call.panel_stride, room.rows, 0, fetched.from, fetched.step);
        for (int row = 0; row < height; ++row) FinishRow(call, room.rows[row], vectors, column, call.out[first + row]);
      });
    }
  }
}

void RunMatrixF32(const MatrixCall<float>& call) { call.pairs != nullptr ? RunMatrix(call, call.pairs) : RunMatrix(call, call.b); }
void RunMatrixF64(const MatrixCall<double>& call) { RunMatrix(call, call.b); }

const GemmKernels* MatrixKernels() {
  static constexpr GemmKernels kernels{MaxLanesOf<float>(), MaxLanesOf<double>(), panel_of, RunMatrixF32, RunMatrixF64};
  return &kernels;
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(MatrixKernels);

const GemmKernels& gemm_kernels() { return *HWY_DYNAMIC_DISPATCH(MatrixKernels)(); }

}  // namespace millrace::cpu
#endif
