// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include <millrace/kernels/cuda/with_cuda/functions.cuh>
#include <millrace/kernels/cuda/with_cuda/mma.cuh>

namespace millrace::cuda {

/// Products of f16, bf16 or tf32 of many rows, by the arithmetic of mma.cuh: a block makes 128 columns by 128 rows, a warp 32 by 64 of them. Rows of a are
/// contiguous and so are those of b; both, k and n are multiples of 16 bytes. While 32 k (tf32: 16) are multiplied, the next ones are on their way. They lie in
/// shared memory as the fragments that the warps read, whose words are exchanged so that neither who writes nor who reads meets another in a bank.
template <class T>
struct WideNarrowProduct {
  using Stored = typename Arithmetic<T>::Stored;
  static constexpr int chunk_k = Arithmetic<T>::chunk;
  static constexpr int warps = 8, tile = 128, depth = 2 * chunk_k, together = 16 / static_cast<int>(sizeof(T));
  static constexpr int column_pieces = 2, row_pieces = 8;  // of a warp: 16 columns, 8 rows
  static constexpr int side_words = tile * depth * static_cast<int>(sizeof(T)) / 4;
  static constexpr std::int64_t shared_bytes = std::int64_t{2} * 2 * side_words * 4;

  const Stored *a, *b;
  std::int64_t a_row, b_row;
  Elements<float> out;
  std::int64_t out_row, out_column, m, n, k;
  float alpha, beta;
  Elements<float> bias;  // of n elements, or null
  std::int64_t chain;    // more than k where sums do not restart

  MILLRACE_HD static std::int64_t tiles(std::int64_t extent) { return (extent + tile - 1) / tile; }
  std::int64_t blocks() const { return tiles(m) * tiles(n); }

  MILLRACE_DEVICE void operator()(Warp& warp) const {
    const Place place{warp.block() / tiles(n) * tile, warp.block() % tiles(n) * tile};
    PerLane<Sums> total, part;
    PerLane<Fetched> next;
    clear(warp, total);
    clear(warp, part);
    fetch(warp, place, 0, next);
    stage(warp, 0, next);
    warp.sync();
    int side = 0;
    std::int64_t closed = 0;
    for (std::int64_t begin = 0; begin < k; begin += depth, side = 1 - side) {
      const bool more = begin + depth < k;
      if (begin == closed + chain) {
        close(warp, closed == 0, total, part);
        closed = begin;
      }
      if (more) fetch(warp, place, begin + depth, next);
      multiply(warp, side, part, static_cast<int>(least_of<std::int64_t>(k - begin, depth)));
      if (more) stage(warp, 1 - side, next);  // which all are through with since the last barrier
      warp.sync();
    }
    close(warp, closed == 0, total, part);
    store(warp, place, total);
  }

 private:
  struct Sums {
    float at[column_pieces * row_pieces * 4];
  };
  struct Fetched {
    Words4 rows[2], columns[2];  // a chunk of a row; 8 columns of two k, or (tf32) of one
  };
  struct Place {
    std::int64_t row, column;
  };
  /// The part of the rows that a thread fetches: a chunk of one.
  struct OfRows {
    int row, chunk;
    MILLRACE_DEVICE OfRows(const Warp& warp, int lane) : row(warp.warp() * 16 + lane / 2), chunk(lane % 2) {}
  };
  /// The part of the columns that a thread fetches: 8 columns from `octet` · 8 on, at pair `pair` of the 8 pairs of k of a chunk, or (tf32) at k `pair` of its 8.
  struct OfColumns {
    int octet, pair, chunk;
    MILLRACE_DEVICE OfColumns(const Warp& warp, int lane) : octet(warp.warp() / 2 * 4 + lane % 4), pair(lane / 4), chunk(warp.warp() % 2) {}
  };

  static MILLRACE_DEVICE void clear(const Warp& warp, PerLane<Sums>& sums) {
    warp.each_lane([&](int lane) { MILLRACE_UNROLLED for (int i = 0; i < column_pieces * row_pieces * 4; ++i) sums[lane].at[i] = 0; });
  }
  /// A chain ends: the first one is the total, later ones are added.
  static MILLRACE_DEVICE void close(const Warp& warp, bool first, PerLane<Sums>& total, PerLane<Sums>& part) {
    warp.each_lane([&](int lane) {
      MILLRACE_UNROLLED for (int i = 0; i < column_pieces * row_pieces * 4; ++i) {
        total[lane].at[i] = first ? part[lane].at[i] : total[lane].at[i] + part[lane].at[i];
        part[lane].at[i] = 0;
      }
    });
  }

  /// Zeros where there is nothing.
  static MILLRACE_DEVICE Words4 piece(const Stored* from, bool there) {
    Words4 made{};
    if (there) made = *reinterpret_cast<const Words4*>(from);
    return made;
  }
  MILLRACE_DEVICE void fetch(const Warp& warp, const Place& place, std::int64_t begin, PerLane<Fetched>& next) const {
    warp.each_lane([&](int lane) {
      const OfRows rows(warp, lane);
      const Stored* const row = a + (place.row + rows.row) * a_row;
      MILLRACE_UNROLLED for (int half = 0; half < 2; ++half) {
        const std::int64_t at = begin + rows.chunk * chunk_k + half * together;
        next[lane].rows[half] = piece(row + at, place.row + rows.row < m && at < k);
      }
      const OfColumns columns(warp, lane);
      const std::int64_t at = begin + columns.chunk * chunk_k + columns.pair * chunk_k / 8;
      MILLRACE_UNROLLED for (int half = 0; half < 2; ++half) {
        const std::int64_t x = sizeof(T) == 2 ? at + half : at;
        const std::int64_t column = place.column + columns.octet * 8 + (sizeof(T) == 2 ? 0 : half * together);
        next[lane].columns[half] = piece(b + x * b_row + column, column < n && at < k);
      }
    });
  }

  static MILLRACE_DEVICE std::uint32_t* left(const Warp& warp, int side) {
    return reinterpret_cast<std::uint32_t*>(warp.shared()) + side * 2 * side_words;
  }
  static MILLRACE_DEVICE std::uint32_t* right(const Warp& warp, int side) { return left(warp, side) + side_words; }
  /// Where lane `lane` of piece `piece` of A keeps its words, times 4; and of B, times 2.
  static MILLRACE_DEVICE int in_a(int piece, int chunk, int lane) { return (piece * 2 + chunk) * warp_lanes + (lane ^ piece % 2 * 4); }
  static MILLRACE_DEVICE int in_b(int piece, int chunk, int lane) {
    return (piece * 2 + chunk) * warp_lanes + (lane ^ (lane / 16 + chunk * 2));
  }

  /// Two factors, or (tf32) one, as they were fetched.
  static MILLRACE_DEVICE std::uint32_t factors(std::uint32_t word) {
    if constexpr (std::is_same_v<T, TensorFloat32>) return factor_of<T>(std::bit_cast<float>(word)).bits;
    return word;
  }
  /// Column `i` of the 8.
  static MILLRACE_DEVICE std::uint32_t column_word(const Words4 (&columns)[2], int i) {
    if constexpr (sizeof(T) == 4) return factors(columns[i / 4].at[i % 4]);
    const std::uint32_t even = columns[0].at[i / 2 % 4], odd = columns[1].at[i / 2 % 4];
    return i % 2 == 0 ? (even & 0xffffu) | odd << 16 : even >> 16 | (odd & 0xffff0000u);
  }

  static MILLRACE_DEVICE void stage(const Warp& warp, int side, const PerLane<Fetched>& next) {
    warp.each_lane([&](int lane) {
      const Fetched& found = next[lane];
      const OfRows rows(warp, lane);
      auto* const b_words = reinterpret_cast<Words2*>(right(warp, side));
      MILLRACE_UNROLLED for (int q = 0; q < 4; ++q)
          b_words[in_b(rows.row / 8, rows.chunk, rows.row % 8 * 4 + q)] = {{factors(found.rows[0].at[q]), factors(found.rows[1].at[q])}};
      const OfColumns columns(warp, lane);
      std::uint32_t* const a_words = left(warp, side) + columns.octet % 2 + columns.pair / 4 * 2;
      MILLRACE_UNROLLED for (int i = 0; i < 8; ++i) a_words[in_a(columns.octet / 2, columns.chunk, i * 4 + columns.pair % 4) * 4] =
          column_word(found.columns, i);
    });
  }

  static MILLRACE_DEVICE void multiply(const Warp& warp, int side, PerLane<Sums>& part, int count) {
    const auto* const a_words = reinterpret_cast<const Words4*>(left(warp, side));
    const auto* const b_words = reinterpret_cast<const Words2*>(right(warp, side));
    MILLRACE_UNROLLED for (int chunk = 0; chunk < depth / chunk_k; ++chunk) {
      if (chunk * chunk_k >= count) return;
      PerLane<Words4> columns[column_pieces];
      MILLRACE_UNROLLED for (int i = 0; i < column_pieces; ++i)
          warp.each_lane([&](int lane) { columns[i][lane] = a_words[in_a(warp.warp() % 4 * column_pieces + i, chunk, lane)]; });
      MILLRACE_UNROLLED for (int j = 0; j < row_pieces; ++j) {
        PerLane<Words2> rows;
        warp.each_lane([&](int lane) { rows[lane] = b_words[in_b(warp.warp() / 4 * row_pieces + j, chunk, lane)]; });
        MILLRACE_UNROLLED for (int i = 0; i < column_pieces; ++i) mma<T>(part, (i * row_pieces + j) * 4, columns[i], rows);
      }
    }
  }

  MILLRACE_DEVICE void store(const Warp& warp, const Place& place, const PerLane<Sums>& total) const {
    const std::int64_t first_column = place.column + warp.warp() % 4 * column_pieces * 16;
    const std::int64_t first_row = place.row + warp.warp() / 4 * row_pieces * 8;
    warp.each_lane([&](int lane) {
      MILLRACE_UNROLLED for (int i = 0; i < column_pieces * row_pieces * 4; ++i) {
        const std::int64_t column = first_column + i / (row_pieces * 4) * 16 + lane / 4 + i % 4 / 2 * 8;
        const std::int64_t row = first_row + i / 4 % row_pieces * 8 + lane % 4 * 2 + i % 2;
        if (column < n && row < m) put(row * out_row + column * out_column, column, total[lane].at[i]);
      }
    });
  }
  MILLRACE_DEVICE void put(std::int64_t at, std::int64_t column, float value) const {
    if (alpha != 1.0f) value = alpha * value;
    if (beta != 0.0f) value = value + (beta == 1.0f ? out.get(at) : beta * out.get(at));
    if (bias.data != nullptr) value = value + bias.get(column);
    out.set(at, value);
  }
};

}  // namespace millrace::cuda
