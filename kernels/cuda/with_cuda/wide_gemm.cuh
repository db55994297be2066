// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/cuda/with_cuda/element.cuh>
#include <millrace/kernels/cuda/with_cuda/functions.cuh>
#include <millrace/kernels/cuda/with_cuda/warp.cuh>

namespace millrace::cuda {

/// Products of f32 and f64 by blocks of 256 threads: a block makes 16·EACH by 16·EACH outputs, whose factors it stages in shared memory, a thread
/// EACH by EACH of them in registers. Each output is the chain of gemm.h, as in the kernel with a thread for each.
template <class T, int EACH>
struct WideProduct {
  static constexpr int warps = 8, threads = warps * warp_lanes, tile = 16 * EACH, depth = 16;
  static constexpr int together = 16 / static_cast<int>(sizeof(T));  // that a thread reads at once
  static constexpr int stride = tile + together;                     // of shared memory: neighbours in k lie in different banks
  static constexpr int fetched = tile * depth / threads;
  static constexpr std::int64_t chain = 512;
  static_assert(chain % depth == 0 && EACH % together == 0);
  static constexpr std::int64_t shared_bytes = 2 * depth * stride * static_cast<std::int64_t>(sizeof(T));

  Walk<3> batch;  // a, b, out
  const T *a, *b;
  std::int64_t a_row, a_column, b_row, b_column;
  Elements<T> out;
  std::int64_t out_row, out_column, m, n, k;
  T alpha, beta;
  Elements<T> bias;  // of n elements, or null

  MILLRACE_HD static std::int64_t tiles(std::int64_t extent) { return (extent + tile - 1) / tile; }
  static std::int64_t blocks(std::int64_t batch, std::int64_t m, std::int64_t n) { return batch * tiles(m) * tiles(n); }

  MILLRACE_DEVICE void operator()(Warp& warp) const {
    Place place;
    std::int64_t rest = warp.block();
    place.column = rest % tiles(n) * tile;
    rest /= tiles(n);
    place.row = rest % tiles(m) * tile;
    batch.find(rest / tiles(m), place.at);
    PerLane<Sums> total, part;
    PerLane<Fetched> next;
    clear(warp, part);
    clear(warp, total);
    fetch(warp, place, 0, next);
    for (std::int64_t begin = 0; begin < k; begin += depth) {
      if (begin % chain == 0 && begin > 0) close(warp, begin == chain, total, part);
      warp.sync();
      stage(warp, next);
      warp.sync();
      if (begin + depth < k) fetch(warp, place, begin + depth, next);  // under way while the others are multiplied
      multiply(warp, part, static_cast<int>(least_of<std::int64_t>(k - begin, depth)));
    }
    close(warp, k <= chain, total, part);
    store(warp, place, total);
  }

 private:
  struct Sums {
    T at[EACH][EACH];
  };
  struct Fetched {
    T a[fetched], b[fetched];
  };
  struct Place {
    std::int64_t row, column, at[3];
  };
  struct alignas(16) Together {
    T at[together];
  };

  static MILLRACE_DEVICE void clear(const Warp& warp, PerLane<Sums>& sums) {
    warp.each_lane([&](int lane) {
      MILLRACE_UNROLLED for (int r = 0; r < EACH; ++r) MILLRACE_UNROLLED for (int c = 0; c < EACH; ++c) sums[lane].at[r][c] = T{0};
    });
  }
  /// A chain ends: the first one is the total, later ones are added.
  static MILLRACE_DEVICE void close(const Warp& warp, bool first, PerLane<Sums>& total, PerLane<Sums>& part) {
    warp.each_lane([&](int lane) {
      MILLRACE_UNROLLED for (int r = 0; r < EACH; ++r) MILLRACE_UNROLLED for (int c = 0; c < EACH; ++c) {
        total[lane].at[r][c] = first ? part[lane].at[r][c] : total[lane].at[r][c] + part[lane].at[r][c];
        part[lane].at[r][c] = T{0};
      }
    });
  }

  /// Element `i` of a staged tile: which row or column of it, and which k. `along_k`: neighbours in k lie side by side, so that neighbours read
  /// neighbours.
  static MILLRACE_DEVICE void find(int i, bool along_k, int& across, int& x) {
    across = along_k ? i / depth : i % tile;
    x = along_k ? i % depth : i / tile;
  }
  /// Elements outside are zeros; sums of them are not stored, and no k beyond the last is multiplied.
  MILLRACE_DEVICE void fetch(const Warp& warp, const Place& place, std::int64_t begin, PerLane<Fetched>& next) const {
    warp.each_lane([&](int lane) {
      const int first = warp.warp() * warp_lanes + lane;
      MILLRACE_UNROLLED for (int i = 0; i < fetched; ++i) {
        int across = 0, x = 0;
        find(first + i * threads, a_column == 1, across, x);
        next[lane].a[i] =
            place.row + across < m && begin + x < k ? a[place.at[0] + (place.row + across) * a_row + (begin + x) * a_column] : T{0};
        find(first + i * threads, b_row == 1, across, x);
        next[lane].b[i] =
            place.column + across < n && begin + x < k ? b[place.at[1] + (begin + x) * b_row + (place.column + across) * b_column] : T{0};
      }
    });
  }
  /// [k][rows] of a, then [k][columns] of b.
  MILLRACE_DEVICE void stage(const Warp& warp, const PerLane<Fetched>& next) const {
    auto* const left = reinterpret_cast<T*>(warp.shared());
    T* const right = left + depth * stride;
    warp.each_lane([&](int lane) {
      const int first = warp.warp() * warp_lanes + lane;
      MILLRACE_UNROLLED for (int i = 0; i < fetched; ++i) {
        int across = 0, x = 0;
        find(first + i * threads, a_column == 1, across, x);
        left[x * stride + across] = next[lane].a[i];
        find(first + i * threads, b_row == 1, across, x);
        right[x * stride + across] = next[lane].b[i];
      }
    });
  }

  /// Row or column `i` of those of a thread that stands at `thread` of 16.
  static MILLRACE_DEVICE int of_thread(int thread, int i) { return i / together * (16 * together) + thread * together + i % together; }
  static MILLRACE_DEVICE int down(const Warp& warp, int lane) { return warp.warp() * 2 + lane / 16; }

  MILLRACE_DEVICE void multiply(const Warp& warp, PerLane<Sums>& part, int count) const {
    if (count == depth) {
      MILLRACE_UNROLLED_BY_4 for (int x = 0; x < depth; ++x) multiply_one(warp, part, x);
    } else {
      for (int x = 0; x < count; ++x) multiply_one(warp, part, x);
    }
  }
  static MILLRACE_DEVICE void multiply_one(const Warp& warp, PerLane<Sums>& part, int x) {
    const auto* const left = reinterpret_cast<const T*>(warp.shared()) + x * stride;
    const T* const right = left + depth * stride;
    warp.each_lane([&](int lane) {
      Together rows[EACH / together], columns[EACH / together];
      MILLRACE_UNROLLED for (int i = 0; i < EACH / together; ++i) {
        rows[i] = *reinterpret_cast<const Together*>(left + of_thread(down(warp, lane), i * together));
        columns[i] = *reinterpret_cast<const Together*>(right + of_thread(lane % 16, i * together));
      }
      MILLRACE_UNROLLED for (int r = 0; r < EACH; ++r) MILLRACE_UNROLLED for (int c = 0; c < EACH; ++c) {
        T& sum = part[lane].at[r][c];
        sum = mul_add(rows[r / together].at[r % together], columns[c / together].at[c % together], sum);
      }
    });
  }

  MILLRACE_DEVICE void store(const Warp& warp, const Place& place, const PerLane<Sums>& total) const {
    warp.each_lane([&](int lane) {
      MILLRACE_UNROLLED for (int r = 0; r < EACH; ++r) MILLRACE_UNROLLED for (int c = 0; c < EACH; ++c) {
        const std::int64_t row = place.row + of_thread(down(warp, lane), r);
        const std::int64_t column = place.column + of_thread(lane % 16, c);
        if (row < m && column < n) put(place.at[2] + row * out_row + column * out_column, column, total[lane].at[r][c]);
      }
    });
  }
  MILLRACE_DEVICE void put(std::int64_t at, std::int64_t column, T value) const {
    if (alpha != T{1}) value = alpha * value;
    if (beta != T{0}) value = value + (beta == T{1} ? out.get(at) : beta * out.get(at));
    if (bias.data != nullptr) value = value + bias.get(column);
    out.set(at, value);
  }
};

}  // namespace millrace::cuda
