// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cuda/recurrent/device.cuh>

#if !defined(__CUDACC_RTC__)
#include <millrace/tensor/bfloat16.h>
#endif

/// **The arithmetic of products by tensor cores on a CUDA device.** The right operand (the weights) stands as A, the rows as B, the sums are f32.
///
///   id `mma.m16n8k16`:            f16 and bf16, by `mma.sync.m16n8k16` or what has its bits; h·R of LSTM cells restarts every 128 k
///   id `mma.m16n8k8 tf32, k 128`: f32 on a device that was made with `CudaOptions::tf32`, by `mma.sync.m16n8k8` of factors that are rounded to
///                                 tf32 (`cvt.rna`: to nearest, ties away from zero) as they are packed or staged
///
/// A chain of k (tf32, and h·R: of 128 k), ascending, from +0; what k lacks to a multiple of the instruction's is zeros; then the sums of the chains,
/// added ascending, each a rounded addition. The kernels of libraries have one chain. A step of an LSTM has few rows, so its
/// h·R takes several chains at once. Bias, beta·c and the like are as in gemm.h, in f32. Every kernel that multiplies such operands on a device uses
/// `mma` in this order, so that backends have the same bits.
///
/// How the unit itself rounds within one step is its own; another device type may differ.
namespace millrace {
struct float16;
#if defined(__CUDACC_RTC__)
struct bfloat16 {
  std::uint16_t bits = 0;
};
#endif
}  // namespace millrace

namespace millrace::cuda {

/// A factor of f32 as the unit reads it: 8 bits of exponent, 10 of mantissa, the last 13 bits 0.
struct TensorFloat32 {
  std::uint32_t bits = 0;
};

/// The arithmetic of products of `T`, and the type in which memory holds the factors.
template <class T>
struct Arithmetic {
  using Stored = T;
  static constexpr bool by_mma = true;
  static constexpr int chunk = 16;  ///< k of one step of a chain
  static constexpr int chain = 0;   ///< k from one restart to the next; 0: there is none
};
template <>
struct Arithmetic<TensorFloat32> {
  using Stored = float;
  static constexpr bool by_mma = true;
  static constexpr int chunk = 8;
  static constexpr int chain = 128;
};
/// gemm.h's own: one fused multiply-add a k, restarted every 512.
template <>
struct Arithmetic<float> {
  using Stored = float;
  static constexpr bool by_mma = false;
  static constexpr int chunk = 8;  ///< k that lie together in packed weights; no arithmetic depends on it
  static constexpr int chain = 512;
};

/// The chain of h·R in LSTM cells by tensor cores: k from one restart to the next.
inline constexpr int recurrent_chain = 128;

/// A stored element as a factor.
template <class T>
MILLRACE_HD inline T factor_of(typename Arithmetic<T>::Stored value) {
  return value;
}
/// A NaN stays one: cutting its last bits off could leave an infinity.
template <>
MILLRACE_HD inline TensorFloat32 factor_of<TensorFloat32>(float value) {
  TensorFloat32 made;
  if (value != value) {
    made.bits = 0x7fffe000;
    return made;
  }
#if defined(__CUDA_ARCH__)
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(made.bits) : "f"(value));
#else
  made.bits = bits_as<std::uint32_t>(value);
  if ((made.bits & 0x7f800000) != 0x7f800000) made.bits += 0x1000;
#endif
  made.bits &= 0xffffe000;
  return made;
}

#if !defined(__CUDACC__)
/// As PTX lays the fragments out. m16n8k16: lane 4g + q holds of A rows g and g + 8, columns 2q, 2q + 1 and those + 8; of B the same k, column g.
/// m16n8k8 of tf32: of A rows g and g + 8, columns q and q + 4; of B the same k, column g. Both: of the sums rows g and g + 8, columns 2q and
/// 2q + 1. Here the products are added one by one, ascending.
template <class T>
void read_fragments(float (&left)[16][16], float (&right)[16][8], const PerLane<Words4>& a, const PerLane<Words2>& b) {
  const auto half = [](std::uint32_t word, int which) {
    T value;
    value.bits = static_cast<std::uint16_t>(word >> (16 * which));
    return static_cast<float>(value);
  };
  for (int lane = 0; lane < warp_lanes; ++lane) {
    const int k = lane % 4 * 2;
    for (int i = 0; i < 8; ++i) left[lane / 4 + i / 2 % 2 * 8][k + i % 2 + i / 4 * 8] = half(a[lane].at[i / 2], i % 2);
    for (int i = 0; i < 4; ++i) right[k + i % 2 + i / 2 * 8][lane / 4] = half(b[lane].at[i / 2], i % 2);
  }
}
template <>
inline void read_fragments<TensorFloat32>(float (&left)[16][16], float (&right)[16][8], const PerLane<Words4>& a,
                                          const PerLane<Words2>& b) {
  const auto cut = [](std::uint32_t word) { return bits_as<float>(word & 0xffffe000); };  // the unit does not look at the rest
  for (int lane = 0; lane < warp_lanes; ++lane) {
    for (int i = 0; i < 4; ++i) left[lane / 4 + i % 2 * 8][lane % 4 + i / 2 * 4] = cut(a[lane].at[i]);
    for (int i = 0; i < 2; ++i) right[lane % 4 + i * 4][lane / 4] = cut(b[lane].at[i]);
  }
}
template <class T>
void emulated_mma(float* const (&sums)[warp_lanes], const PerLane<Words4>& a, const PerLane<Words2>& b) {
  float left[16][16], right[16][8];
  read_fragments<T>(left, right, a, b);
  for (int lane = 0; lane < warp_lanes; ++lane)
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < Arithmetic<T>::chunk; ++k)
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
  if constexpr (is_same<T, float16>) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[first]), "+f"(d[first + 1]), "+f"(d[first + 2]), "+f"(d[first + 3])
                 : "r"(x.at[0]), "r"(x.at[1]), "r"(x.at[2]), "r"(x.at[3]), "r"(y.at[0]), "r"(y.at[1]));
  } else if constexpr (is_same<T, TensorFloat32>) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
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

/// Where element (row 0…15, k of the chunk) of A stands in a fragment, in elements: lane, then what the lane holds.
template <class T>
MILLRACE_HD constexpr int place_in_a(int row, int k) {
  if constexpr (is_same<T, TensorFloat32>) return (row % 8 * 4 + k % 4) * 4 + row / 8 + k / 4 * 2;
  return (row % 8 * 4 + k % 8 / 2) * 8 + (row / 8 + k / 8 * 2) * 2 + k % 2;
}
/// The place of element (k, column 0…7) of B.
template <class T>
MILLRACE_HD constexpr int place_in_b(int k, int column) {
  if constexpr (is_same<T, TensorFloat32>) return (column * 4 + k % 4) * 2 + k / 4;
  return (column * 4 + k % 8 / 2) * 4 + k / 8 * 2 + k % 2;
}

}  // namespace millrace::cuda
