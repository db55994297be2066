// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/matmul_rows.h>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/matmul_rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/partial-inl.h>
#include <millrace/kernels/cpu/tile-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {

/// Rows of out that go side by side: one chain of additions alone would leave the multipliers idle.
inline constexpr int side_by_side = 4;

/// out[row][0 … columns) of Rows rows, `columns` ≤ lanes.
template <int Rows, class T>
HWY_INLINE void FewColumns(const T* a, const T* b, T* out, std::int64_t k, std::int64_t n, std::size_t columns) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  V total[Rows];
  for (int row = 0; row < Rows; ++row) total[row] = hn::Zero(d);
  for (std::int64_t begin = 0; begin < k; begin += k_block) {
    const std::int64_t end = std::min(k, begin + k_block);
    V sum[Rows];
    for (int row = 0; row < Rows; ++row) sum[row] = hn::Zero(d);
    for (std::int64_t at = begin; at < end; ++at) {
      const V right = LoadSome(d, b + at * n, columns);
      for (int row = 0; row < Rows; ++row) sum[row] = hn::MulAdd(hn::Set(d, a[row * k + at]), right, sum[row]);
    }
    for (int row = 0; row < Rows; ++row) total[row] = begin == 0 ? sum[row] : hn::Add(total[row], sum[row]);
  }
  for (int row = 0; row < Rows; ++row) StoreSome(d, total[row], out + row * n, columns);
}

/// The columns of whole vectors by the tiles of gemm, the rest by itself: b ends with its last element.
template <class T>
void MatmulRow(const T* a, const T* b, T* out, std::int64_t m, std::int64_t k, std::int64_t n) {
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  const std::int64_t vectors = k > 0 ? n / lanes : 0;
  const std::int64_t most = std::min(4, VectorsOf(m, 0));
  for (std::int64_t first = 0; first < vectors; first += most) {
    const auto count = static_cast<int>(std::min(most, vectors - first));
    EachTile(m, TallestOf(m), [&](std::int64_t row, int height) HWY_ATTR {
      const T* from[tile_rows];
      T* to[tile_rows];
      for (int i = 0; i < height; ++i) from[i] = a + (row + i) * k;
      for (int i = 0; i < height; ++i) to[i] = out + (row + i) * n;
      const T* const panel = b + first * lanes;
      TileFor<T>(height, count)(from, k, panel, n, panel_of * lanes, to, first * lanes, reinterpret_cast<std::uintptr_t>(panel), 0);
    });
  }
  for (std::int64_t column = vectors * lanes; column < n; column += lanes) {
    const auto columns = static_cast<std::size_t>(std::min(lanes, n - column));
    std::int64_t row = 0;
    for (; row + side_by_side <= m; row += side_by_side)
      FewColumns<side_by_side>(a + row * k, b + column, out + row * n + column, k, n, columns);
    for (; row < m; ++row) FewColumns<1>(a + row * k, b + column, out + row * n + column, k, n, columns);
  }
}

void MatmulRowF32(const float* a, const float* b, float* out, std::int64_t m, std::int64_t k, std::int64_t n) {
  MatmulRow(a, b, out, m, k, n);
}
void MatmulRowF64(const double* a, const double* b, double* out, std::int64_t m, std::int64_t k, std::int64_t n) {
  MatmulRow(a, b, out, m, k, n);
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(MatmulRowF32);
HWY_EXPORT(MatmulRowF64);

void matmul_row(const float* a, const float* b, float* out, std::int64_t m, std::int64_t k, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(MatmulRowF32)(a, b, out, m, k, n);
}
void matmul_row(const double* a, const double* b, double* out, std::int64_t m, std::int64_t k, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(MatmulRowF64)(a, b, out, m, k, n);
}

}  // namespace millrace::cpu
#endif
