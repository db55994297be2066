// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cuda/with_cuda/element.cuh>
#include <millrace/kernels/cuda/with_cuda/warp.cuh>

/// **The arithmetic of narrow products on a CUDA device**, id `mma.m16n8k16, k 128`: products of f16 or bf16 summed in f32 by
/// `mma.sync.m16n8k16`, the right operand (the weights) standing as A, the rows as B. A chain of eight of these, 128 k, ascending, from +0; what
/// k lacks to a multiple of 16 is zeros; then the sums of the chains, added ascending, each a rounded addition. What follows (bias, beta·c, …)
/// is as in gemm.h. Every kernel that multiplies narrow operands on a device uses `mma` in this order, so that gears have the same bits.
///
/// How the unit itself rounds within 16 k is its own; another device type may differ.
namespace millrace::cuda {

template <class T>
struct Arithmetic {
  static constexpr int chunk = 16;   ///< k of one step of a chain
  static constexpr int chain = 128;  ///< k from one restart to the next
};
/// gemm.h's own: one fused multiply-add a k, restarted every 512.
template <>
struct Arithmetic<float> {
  static constexpr int chunk = 8;  ///< k that lie together in packed weights; no arithmetic depends on it
  static constexpr int chain = 512;
};

#if !defined(__CUDACC__)
/// As PTX lays the fragments of m16n8k16 out: lane 4g + q holds of A rows g and g + 8, columns 2q, 2q + 1 and those + 8; of B the same k, column
/// g; of the sums rows g and g + 8, columns 2q and 2q + 1. Here the products are added one by one, ascending.
template <class T>
void emulated_mma(float* const (&sums)[warp_lanes], const PerLane<Words4>& a, const PerLane<Words2>& b) {
  const auto half = [](std::uint32_t word, int which) {
    T value;
    value.bits = static_cast<std::uint16_t>(word >> (16 * which));
    return static_cast<float>(value);
  };
  float left[16][16], right[16][8];
  for (int lane = 0; lane < warp_lanes; ++lane) {
    const int k = lane % 4 * 2;
    for (int i = 0; i < 8; ++i) left[lane / 4 + i / 2 % 2 * 8][k + i % 2 + i / 4 * 8] = half(a[lane].at[i / 2], i % 2);
    for (int i = 0; i < 4; ++i) right[k + i % 2 + i / 2 * 8][lane / 4] = half(b[lane].at[i / 2], i % 2);
  }
  for (int lane = 0; lane < warp_lanes; ++lane)
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 16; ++k)
        sums[lane][i] = __builtin_fmaf(left[lane / 4 + i / 2 * 8][k], right[k][lane % 4 * 2 + i % 2], sums[lane][i]);
}
#endif

/// sums[lane].at[first, first + 4) += A · B, by all lanes of a warp.
template <class T, class Sums>
MILLRACE_DEVICE void mma(PerLane<Sums>& sums, int first, const PerLane<Words4>& a, const PerLane<Words2>& b) {
#if defined(__CUDACC__)
  // Volatile: the compiler must not move it to where only some of the lanes come, though only those may use the sums.
  float(&d)[sizeof(Sums) / sizeof(float)] = sums[0].at;
  const Words4& x = a[0];
  const Words2& y = b[0];
  if constexpr (std::is_same_v<T, float16>) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[first]), "+f"(d[first + 1]), "+f"(d[first + 2]), "+f"(d[first + 3])
                 : "r"(x.at[0]), "r"(x.at[1]), "r"(x.at[2]), "r"(x.at[3]), "r"(y.at[0]), "r"(y.at[1]));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[first]), "+f"(d[first + 1]), "+f"(d[first + 2]), "+f"(d[first + 3])
                 : "r"(x.at[0]), "r"(x.at[1]), "r"(x.at[2]), "r"(x.at[3]), "r"(y.at[0]), "r"(y.at[1]));
  }
#else
  float* at[warp_lanes];
  for (int lane = 0; lane < warp_lanes; ++lane) at[lane] = sums[lane].at + first;
  emulated_mma<T>(at, a, b);
#endif
}

/// Where element (row 0…15, k 0…15) of A stands in a fragment, in elements: lane, then what the lane holds.
MILLRACE_HD constexpr int place_in_a(int row, int k) { return (row % 8 * 4 + k % 8 / 2) * 8 + (row / 8 + k / 8 * 2) * 2 + k % 2; }
/// The same of element (k, column 0…7) of B.
MILLRACE_HD constexpr int place_in_b(int k, int column) { return (column * 4 + k % 8 / 2) * 4 + k / 8 * 2 + k % 2; }

}  // namespace millrace::cuda
