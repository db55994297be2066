// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cuda/recurrent/arithmetic.cuh>
#include <millrace/kernels/cuda/recurrent/elementary.cuh>

/// Products of a recurrent step: the weights of a unit block (8 units, each with some gates) times tiles of 8 rows, chunk of k by chunk. A lane
/// 4g + q gets the sums of unit g and of rows 2q and 2q + 1 of each tile.
namespace millrace::cuda {

/// Bytes of 8 rows of one chunk of factors.
inline constexpr int factor_piece_bytes = 256;

/// Bytes of a unit block's weights for one chunk of k.
template <class T>
MILLRACE_HD constexpr int weight_piece_bytes(int gates) {
  return Arithmetic<T>::by_mma ? (gates + 1) / 2 * 16 * Arithmetic<T>::chunk * static_cast<int>(sizeof(T))
                               : Arithmetic<T>::chunk * 8 * gates * static_cast<int>(sizeof(T));
}
/// The place of the weight of (gate, unit of its block, k of its chunk) in its piece, in elements.
template <class T>
MILLRACE_HD constexpr int weight_place(int gates, int gate, int unit, int k) {
  if constexpr (!Arithmetic<T>::by_mma) return (k * 8 + unit) * gates + gate;
  return gate / 2 * 16 * Arithmetic<T>::chunk + place_in_a<T>(gate % 2 * 8 + unit, k);
}
/// The place of (k, row of the tile) in a tile of factors, in elements.
template <class T>
MILLRACE_HD constexpr int factor_place(int k, int row) {
  constexpr unsigned chunk = Arithmetic<T>::chunk;
  const int begin = static_cast<int>(static_cast<unsigned>(k) / chunk) * (factor_piece_bytes / static_cast<int>(sizeof(T)));
  const int within = static_cast<int>(static_cast<unsigned>(k) % chunk);
  if constexpr (!Arithmetic<T>::by_mma) return begin + within * 8 + row;
  return begin + place_in_b<T>(within, row);
}

/// A matrix [k, gates · units] as the kernels read it, [unit blocks][chunks] pieces. Element `i` of
/// [unit block][chunk][k][unit][gate], `gates` being even where tensor cores multiply.
template <class T>
struct PackWeights {
  const typename Arithmetic<T>::Stored* from;
  T* to;
  std::int64_t k, units, gates, chunks;

  MILLRACE_HD void operator()(std::int64_t i) const {
    constexpr int chunk = Arithmetic<T>::chunk;
    const std::int64_t padded = Arithmetic<T>::by_mma ? (gates + 1) / 2 * 2 : gates;
    const auto gate = static_cast<int>(i % padded);
    const auto unit = static_cast<int>(i / padded % 8);
    const auto within = static_cast<int>(i / padded / 8 % chunk);
    const std::int64_t piece = i / padded / 8 / chunk;
    const std::int64_t row = piece % chunks * chunk + within, column = piece / chunks * 8 + unit;
    const bool there = row < k && column < units && gate < gates;
    const std::int64_t size = weight_piece_bytes<T>(static_cast<int>(gates)) / static_cast<std::int64_t>(sizeof(T));
    to[piece * size + weight_place<T>(static_cast<int>(gates), gate, unit, within)] =
        there ? factor_of<T>(from[row * gates * units + gate * units + column]) : T{};
  }
};

/// Sums of a lane, by tile, gate, and row 2q or 2q + 1.
template <int GATES, int TILES>
struct ProductSums {
  static constexpr int of_tile = (GATES + 1) / 2 * 4;
  float at[TILES * of_tile];
};

/// One product: where its factors are, and how many. `CHAIN`: k from one restart to the next; 0: there is none.
template <class T, int GATES, int TILES = 1, int CHAIN = Arithmetic<T>::chain>
class Product {
 public:
  using Sums = ProductSums<GATES, TILES>;
  static constexpr int chunk_k = Arithmetic<T>::chunk;
  static constexpr int chain_chunks = CHAIN == 0 ? 1 << 24 : CHAIN / chunk_k;
  static constexpr int weight_bytes = weight_piece_bytes<T>(GATES);

  const std::byte* resident_weights;  ///< the first `resident` pieces of the unit block, in shared memory
  const std::byte* all_weights;       ///< all pieces of it, in global memory
  const std::byte* rows;              ///< of the first tile, in shared memory
  std::int64_t to_next_tile;          ///< bytes
  int k, chunks, resident;

  MILLRACE_DEVICE int chains() const { return (chunks + chain_chunks - 1) / chain_chunks; }

  /// Chain `which`, from +0.
  MILLRACE_DEVICE void chain(const Warp& warp, int which, PerLane<Sums>& part) const {
    warp.each_lane([&](int lane) { MILLRACE_UNROLLED for (int i = 0; i < Sums::of_tile * TILES; ++i) part[lane].at[i] = 0; });
    const int last = (which + 1) * chain_chunks < chunks ? (which + 1) * chain_chunks : chunks;
    const int on_chip = last < resident ? last : resident;
    // Two loops, since loads by a pointer that may be of either memory are slower than those of each.
    int chunk = which * chain_chunks;
    MILLRACE_UNROLLED_BY_4 for (; chunk < on_chip; ++chunk) multiply(warp, part, chunk, resident_weights + chunk * weight_bytes);
    MILLRACE_UNROLLED_BY_4 for (; chunk < last; ++chunk) multiply(warp, part, chunk, all_weights + std::int64_t{chunk} * weight_bytes);
  }

  /// All chains, added ascending.
  MILLRACE_DEVICE void sum(const Warp& warp, PerLane<Sums>& total) const {
    chain(warp, 0, total);
    for (int which = 1; which < chains(); ++which) {
      PerLane<Sums> part;
      chain(warp, which, part);
      warp.each_lane([&](int lane) {
        MILLRACE_UNROLLED for (int i = 0; i < Sums::of_tile * TILES; ++i) total[lane].at[i] = total[lane].at[i] + part[lane].at[i];
      });
    }
  }

 private:
  MILLRACE_DEVICE void multiply(const Warp& warp, PerLane<Sums>& part, int chunk, const std::byte* weights) const {
    const std::byte* const from = rows + chunk * factor_piece_bytes;
    if constexpr (Arithmetic<T>::by_mma) {
      PerLane<Words4> w[(GATES + 1) / 2];
      MILLRACE_UNROLLED for (int pair = 0; pair < (GATES + 1) / 2; ++pair)
          warp.each_lane([&](int lane) { w[pair][lane] = reinterpret_cast<const Words4*>(weights)[pair * warp_lanes + lane]; });
      MILLRACE_UNROLLED for (int tile = 0; tile < TILES; ++tile) {
        PerLane<Words2> h;
        warp.each_lane([&](int lane) { h[lane] = reinterpret_cast<const Words2*>(from + tile * to_next_tile)[lane]; });
        MILLRACE_UNROLLED for (int pair = 0; pair < (GATES + 1) / 2; ++pair) mma<T>(part, tile * Sums::of_tile + pair * 4, w[pair], h);
      }
    } else {
      static_assert(TILES == 1);
      const int count = k - chunk * chunk_k < chunk_k ? k - chunk * chunk_k : chunk_k;
      warp.each_lane([&](int lane) {
        for (int i = 0; i < count; ++i) {
          float w[GATES];
          const float* const from_unit = reinterpret_cast<const float*>(weights) + (i * 8 + lane / 4) * GATES;
          if constexpr (GATES == 4) {
            const Floats4 all = *reinterpret_cast<const Floats4*>(from_unit);
            MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) w[gate] = all.at[gate];
          } else {
            MILLRACE_UNROLLED for (int gate = 0; gate < GATES; ++gate) w[gate] = from_unit[gate];
          }
          const Floats2 h = reinterpret_cast<const Floats2*>(from)[i * 4 + lane % 4];
          MILLRACE_UNROLLED for (int gate = 0; gate < GATES; ++gate) MILLRACE_UNROLLED for (int row = 0; row < 2; ++row) part[lane]
              .at[gate * 2 + row] = mul_add(h.at[row], w[gate], part[lane].at[gate * 2 + row]);
        }
      });
    }
  }
};

}  // namespace millrace::cuda
