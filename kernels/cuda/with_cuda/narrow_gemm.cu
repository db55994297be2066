// SPDX-License-Identifier: Apache-2.0
// Products of f16, bf16 and tf32 by the arithmetic of mma.cuh, whatever the tile. Columns of the right operand stand as rows of A.
#include <millrace/kernels/cuda/with_cuda/product_request.h>
#include <millrace/kernels/cuda/with_cuda/functions.cuh>
#include <millrace/kernels/cuda/with_cuda/mma.cuh>
#include <millrace/kernels/cuda/with_cuda/wide_narrow_gemm.cuh>

namespace millrace::cuda {
namespace {

constexpr int tile_columns = 64, tile_rows = 32, tile_k = 32, tile_warps = 4;
constexpr int row_tiles = tile_rows / 8;

/// A block makes `tile_columns` by `tile_rows` outputs, a warp 16 columns of them. Elements outside are zeros, and are not stored.
template <class T>
struct NarrowProduct {
  using Stored = typename Arithmetic<T>::Stored;
  static constexpr int chunk = Arithmetic<T>::chunk, k_steps = tile_k / chunk;

  Walk<3> batch;  // a, b, out
  const Stored *a, *b;
  std::int64_t a_row, a_column, b_row, b_column;
  Elements<float> out;
  std::int64_t out_row, out_column, m, n, k;
  float alpha, beta;
  Elements<float> bias;          // of n elements, or null
  std::int64_t chain;            // more than k where sums do not restart
  std::int64_t first_block = 0;  // of a launch: no grid has more than 2^31

  struct Sums {
    float at[row_tiles * 4];
  };
  struct Tile {
    std::int64_t row, column, at[3];
  };

  static constexpr std::int64_t shared_bytes = (tile_columns + tile_rows) * tile_k * static_cast<std::int64_t>(sizeof(T));
  MILLRACE_HD static std::int64_t across(std::int64_t n) { return (n + tile_columns - 1) / tile_columns; }
  MILLRACE_HD static std::int64_t down(std::int64_t m) { return (m + tile_rows - 1) / tile_rows; }
  std::int64_t blocks() const { return batch.count * across(n) * down(m); }

  MILLRACE_DEVICE void operator()(Warp& warp) const {
    Tile tile;
    std::int64_t rest = first_block + warp.block();
    tile.column = rest % across(n) * tile_columns;
    rest /= across(n);
    tile.row = rest % down(m) * tile_rows;
    batch.find(rest / down(m), tile.at);
    PerLane<Sums> total, part;
    clear(warp, total);
    clear(warp, part);
    std::int64_t closed = 0;
    for (std::int64_t begin = 0; begin < k; begin += tile_k) {
      if (begin == closed + chain) {
        close(warp, closed == 0, total, part);
        closed = begin;
      }
      warp.sync();
      stage(warp, tile, begin);
      warp.sync();
      multiply(warp, part, static_cast<int>(least_of<std::int64_t>(k - begin, tile_k)));
    }
    close(warp, closed == 0, total, part);
    store(warp, tile, total);
  }

 private:
  static MILLRACE_DEVICE void clear(const Warp& warp, PerLane<Sums>& sums) {
    warp.each_lane([&](int lane) { MILLRACE_UNROLLED for (int i = 0; i < row_tiles * 4; ++i) sums[lane].at[i] = 0; });
  }
  /// A chain ends: the first one is the total, later ones are added.
  static MILLRACE_DEVICE void close(const Warp& warp, bool first, PerLane<Sums>& total, PerLane<Sums>& part) {
    warp.each_lane([&](int lane) {
      MILLRACE_UNROLLED for (int i = 0; i < row_tiles * 4; ++i) {
        total[lane].at[i] = first ? part[lane].at[i] : total[lane].at[i] + part[lane].at[i];
        part[lane].at[i] = 0;
      }
    });
  }

  /// [columns / 16][k / chunk] fragments of A, then [rows / 8][k / chunk] of B. All loads of a lane are under way before the first is stored.
  MILLRACE_DEVICE void stage(const Warp& warp, const Tile& tile, std::int64_t begin) const {
    constexpr int apart = tile_warps * warp_lanes, of_left = tile_columns * tile_k / apart, of_right = tile_rows * tile_k / apart;
    auto* const left = reinterpret_cast<T*>(warp.shared());
    T* const right = left + tile_columns * tile_k;
    const bool along_k = b_row == 1;  // neighbours read neighbours
    const auto column_of = [along_k](int i) { return along_k ? i / tile_k : i % tile_columns; };
    const auto k_of = [along_k](int i) { return along_k ? i % tile_k : i / tile_columns; };
    warp.each_lane([&](int lane) {
      const int first = warp.warp() * warp_lanes + lane;
      T columns[of_left], rows[of_right];
      MILLRACE_UNROLLED for (int which = 0; which < of_left; ++which) {
        const int i = first + which * apart, column = column_of(i), x = k_of(i);
        const bool there = tile.column + column < n && begin + x < k;
        columns[which] = there ? factor_of<T>(b[tile.at[1] + (begin + x) * b_row + (tile.column + column) * b_column]) : T{};
      }
      MILLRACE_UNROLLED for (int which = 0; which < of_right; ++which) {
        const int i = first + which * apart, row = i / tile_k, x = i % tile_k;
        const bool there = tile.row + row < m && begin + x < k;
        rows[which] = there ? factor_of<T>(a[tile.at[0] + (tile.row + row) * a_row + (begin + x) * a_column]) : T{};
      }
      MILLRACE_UNROLLED for (int which = 0; which < of_left; ++which) {
        const int i = first + which * apart, column = column_of(i), x = k_of(i);
        left[(column / 16 * k_steps + x / chunk) * 16 * chunk + place_in_a<T>(column % 16, x % chunk)] = columns[which];
      }
      MILLRACE_UNROLLED for (int which = 0; which < of_right; ++which) {
        const int i = first + which * apart, row = i / tile_k, x = i % tile_k;
        right[(row / 8 * k_steps + x / chunk) * 8 * chunk + place_in_b<T>(x % chunk, row % 8)] = rows[which];
      }
    });
  }

  MILLRACE_DEVICE void multiply(const Warp& warp, PerLane<Sums>& part, int count) const {
    const auto* const left = reinterpret_cast<const Words4*>(warp.shared());
    const auto* const right = reinterpret_cast<const Words2*>(warp.shared() + tile_columns * tile_k * static_cast<int>(sizeof(T)));
    MILLRACE_UNROLLED for (int step = 0; step < k_steps; ++step) {
      if (step * chunk >= count) return;
      PerLane<Words4> weights;
      warp.each_lane([&](int lane) { weights[lane] = left[(warp.warp() * k_steps + step) * warp_lanes + lane]; });
      MILLRACE_UNROLLED for (int row = 0; row < row_tiles; ++row) {
        PerLane<Words2> rows;
        warp.each_lane([&](int lane) { rows[lane] = right[(row * k_steps + step) * warp_lanes + lane]; });
        mma<T>(part, row * 4, weights, rows);
      }
    }
  }

  MILLRACE_DEVICE void store(const Warp& warp, const Tile& tile, const PerLane<Sums>& total) const {
    warp.each_lane([&](int lane) {
      MILLRACE_UNROLLED for (int i = 0; i < row_tiles * 4; ++i) {
        const std::int64_t column = tile.column + warp.warp() * 16 + lane / 4 + i % 4 / 2 * 8;
        const std::int64_t row = tile.row + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (column < n && row < m) put(tile.at[2] + row * out_row + column * out_column, column, total[lane].at[i]);
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

Elements<float> elements_at(const Tensor& x, std::int64_t offset) {
  return {static_cast<std::byte*>(x.raw_mutable()) + offset * static_cast<std::int64_t>(size_of(x.dtype())), x.dtype()};
}

template <class T>
std::int64_t chain_of(const ProductRequest& of) {
  const std::int64_t own = Arithmetic<T>::chain > 0 ? Arithmetic<T>::chain : of.chain;
  return own > 0 ? own : std::numeric_limits<std::int64_t>::max() / 2;
}

/// Multiplies by large tiles. False, with nothing enqueued: few rows or columns would leave tiles empty, few tiles would leave multiprocessors empty, or the
/// matrices do not lie for it.
template <class T>
bool multiply_wide(const ProductRequest& of, const Queue& queue) {
  using Kernel = WideNarrowProduct<T>;
  constexpr std::int64_t few = 64;
  const auto lies = [](const void* at, std::int64_t row, std::int64_t column) {
    return column == 1 && row % Kernel::together == 0 && reinterpret_cast<std::uintptr_t>(at) % sizeof(Words4) == 0;
  };
  if (of.batch.elements() != 1 || of.m < few || of.n < few || of.k == 0) return false;
  if (of.n % Kernel::together != 0 || of.k % Kernel::together != 0) return false;
  if (!lies(of.a, of.a_row, of.a_column) || !lies(of.b, of.b_row, of.b_column)) return false;
  using Stored = typename Arithmetic<T>::Stored;
  const Kernel kernel{static_cast<const Stored*>(of.a),
                      static_cast<const Stored*>(of.b),
                      of.a_row,
                      of.b_row,
                      elements_at(of.out, of.out_offset),
                      of.out_row,
                      of.out_column,
                      of.m,
                      of.n,
                      of.k,
                      static_cast<float>(of.alpha),
                      static_cast<float>(of.beta),
                      of.bias == nullptr ? Elements<float>{} : elements_at(*of.bias, of.bias_offset),
                      chain_of<T>(of)};
  if (kernel.blocks() < queue.multiprocessors / 2 || kernel.blocks() > std::numeric_limits<int>::max()) return false;
  run_grid(queue, {static_cast<int>(kernel.blocks()), Kernel::warps, 1, false, Kernel::shared_bytes}, kernel);
  return true;
}

template <class T>
void multiply(const ProductRequest& of, const Queue& queue) {
  using Stored = typename Arithmetic<T>::Stored;
  if (multiply_wide<T>(of, queue)) return;
  NarrowProduct<T> kernel{of.walk(),
                          static_cast<const Stored*>(of.a),
                          static_cast<const Stored*>(of.b),
                          of.a_row,
                          of.a_column,
                          of.b_row,
                          of.b_column,
                          elements_at(of.out, of.out_offset),
                          of.out_row,
                          of.out_column,
                          of.m,
                          of.n,
                          of.k,
                          static_cast<float>(of.alpha),
                          static_cast<float>(of.beta),
                          of.bias == nullptr ? Elements<float>{} : elements_at(*of.bias, of.bias_offset),
                          chain_of<T>(of)};
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  const std::int64_t blocks = kernel.blocks();
  for (; kernel.first_block < blocks; kernel.first_block += most)
    run_grid(queue, {static_cast<int>(least_of(most, blocks - kernel.first_block)), tile_warps, 1, false, NarrowProduct<T>::shared_bytes},
             kernel);
}

}  // namespace

void multiply_by_mma(const ProductRequest& request, const Queue& queue) {
  if (request.dtype == DType::f32) return multiply<TensorFloat32>(request, queue);
  request.dtype == DType::f16 ? multiply<float16>(request, queue) : multiply<bfloat16>(request, queue);
}

}  // namespace millrace::cuda
