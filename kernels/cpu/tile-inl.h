// SPDX-License-Identifier: Apache-2.0
// The register tile of every matrix product: some rows times one or two panels. Included once per instruction set.
#if defined(MILLRACE_KERNELS_CPU_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_TILE_INL_H
#undef MILLRACE_KERNELS_CPU_TILE_INL_H
#else
#define MILLRACE_KERNELS_CPU_TILE_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include <hwy/highway.h>
#include <millrace/kernels/cpu/gemm_kernels.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The most rows of a tile. Six rows times the vectors of a panel, the accumulators, leave registers for one row of b and an element of a: two vectors
/// where there are 16 registers, which is one line of a cache, four where there are 32.
inline constexpr int tile_rows = 6;
#if HWY_TARGET == HWY_AVX3
inline constexpr int panel_of = 4;   ///< vectors of a panel
inline constexpr int wide_rows = 6;  ///< the most rows that take four vectors at a time
inline constexpr int widest_rows =
    3;  ///< the most rows that take eight: with fewer vectors the multipliers would wait for their own results
#else
inline constexpr int panel_of = 2;
inline constexpr int wide_rows = 3;
inline constexpr int widest_rows = 1;
#endif

/// The most rows of a tile where there are `rows` in all: seven are not four and three, for three rows of one panel would wait for their own results.
inline constexpr int TallestOf(std::int64_t rows) { return rows == 2 * wide_rows + 1 ? wide_rows : tile_rows; }

/// The number of vectors that a tile takes at a time where there are `rows` rows in all, of weights of `bytes` bytes in all. With 512 bits one panel keeps up with the second cache by
/// itself, where it is fetched ahead: two at a time win where all lie in the first cache, or far away.
inline int VectorsOf(std::int64_t rows, [[maybe_unused]] std::int64_t bytes) {
#if HWY_TARGET == HWY_AVX3
  constexpr std::int64_t first_cache = 32 << 10, near = 384 << 10;  // of the second cache, which rows and slots share
  return rows == widest_rows || (rows < widest_rows && (bytes <= first_cache || bytes > near)) ? 8 : panel_of;
#else
  return rows <= widest_rows ? 8 : rows <= wide_rows || TallestOf(rows) == wide_rows ? 4 : panel_of;
#endif
}

template <class T>
HWY_INLINE constexpr std::size_t MaxLanesOf() {
  return hn::MaxLanes(hn::ScalableTag<T>());
}

/// The lines that a tile brings into the second cache while it multiplies: at each k the one at `from` + k·`step` bytes. No pointer, as it may lie behind the end.
struct Fetched {
  std::uintptr_t from;
  std::int64_t step = 0;
};

/// The panel behind the one that the tiles of `rows` rows multiply, in as many parts as there are tiles: weights that come from a far cache are near when their panel begins.
/// A product of one tile has no time for it.
template <class W>
class NextPanel {
 public:
  /// `row`: elements of W from one k of the panel to the next; `k` of them.
  NextPanel(std::int64_t rows, std::int64_t k, std::int64_t row)
      : k_(k), bytes_(rows > tile_rows ? (row * static_cast<std::int64_t>(sizeof(W)) + rows - 1) / rows : 0) {}
  /// The part of the tile of `height` rows from `first` on. `next`: the panel, or null where none follows; `now`: the tile's own.
  Fetched part(const W* next, const W* now, std::int64_t first, int height) const {
    if (bytes_ == 0 || next == nullptr) return {reinterpret_cast<std::uintptr_t>(now)};
    return {reinterpret_cast<std::uintptr_t>(next) + static_cast<std::uintptr_t>(first * k_ * bytes_), height * bytes_};
  }

 private:
  std::int64_t k_, bytes_;  ///< of a row of b for each row of a
};

/// A tile of Rows rows times Vectors vectors of columns: adds up a[row]·b over k, b `b_stride` from k to k, into to[row][column …]; the vectors belong to
/// panels of `panel_of` each, `panel_stride` apart. One chain per output; blocks of k_block are summed apart and added in order. W: T, or bf16 (as
/// uint16_t) in pairs of k, `b_stride` from pair to pair. The last two parameters are the members of a `Fetched`: a struct would go through memory, where it waits for the tile before it.
template <class T, class W>
using TileFunction = void (*)(const T* const*, std::int64_t, const W*, std::int64_t, std::int64_t, T* const*, std::int64_t, std::uintptr_t,
                              std::int64_t);

/// The tile of `rows` 1…tile_rows and `vectors` 1…panel_of, up to 4 for up to wide_rows rows, or 8 for up to widest_rows. tile_kernels.cpp has them,
/// compiled once for all users.
template <class T, class W = T>
TileFunction<T, W> TileFor(int rows, int vectors);

/// Totals of a tile of up to four vectors, or of the largest one, for what comes behind them.
template <class T>
struct TileRoom {
  explicit TileRoom(int vectors) {
    for (int row = 0; row < tile_rows; ++row) rows[row] = total + static_cast<std::size_t>(row % most(vectors) * vectors) * MaxLanesOf<T>();
  }
  HWY_ALIGN T total[static_cast<std::size_t>(tile_rows) * 4 * MaxLanesOf<T>()];
  T* rows[tile_rows];

 private:
  static constexpr int most(int vectors) { return vectors > 4 ? widest_rows : tile_rows; }
};

/// Splits `rows` into tiles of nearly equal height, at most `most`, and calls f(first, height).
template <class F>
HWY_INLINE void EachTile(std::int64_t rows, int most, F f) {
  if (rows > 0 && rows <= most) return f(0, static_cast<int>(rows));
  const std::int64_t tiles = (rows + most - 1) / most;
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t first = (rows * tile + tiles - 1) / tiles;  // the first ones are the highest
    f(first, static_cast<int>((rows * (tile + 1) + tiles - 1) / tiles - first));
  }
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
