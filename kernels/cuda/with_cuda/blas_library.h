// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// The few of cuBLASLt's functions and numbers that a product takes, as its documentation has them; tests/gpu_probe compares them with its
/// header. The library is big and may be absent, so programs neither link it nor need its header: it is looked for at the first use.
namespace millrace::cuda::blas {

using Handle = void*;
using Description = void*;
using Layout = void*;
using Preference = void*;

struct Algorithm {
  std::uint64_t data[8];
};
struct Proposal {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

inline constexpr int success = 0;
inline constexpr int type_f32 = 0, type_f64 = 1, type_f16 = 2, type_bf16 = 14;
inline constexpr int compute_f32 = 68, compute_f64 = 70;
inline constexpr int turn_left = 3, turned = 1;                                       // an attribute of a description, and its value
inline constexpr int most_workspace = 1, reduction_schemes = 3, least_alignment = 5;  // preferences; alignments of four operands follow

struct Functions {
  std::size_t (*version)() = nullptr;
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*describe)(Description*, int compute, int scale) = nullptr;
  int (*end_description)(Description) = nullptr;
  int (*set_description)(Description, int which, const void* value, std::size_t bytes) = nullptr;
  int (*lay_out)(Layout*, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t apart) = nullptr;
  int (*end_layout)(Layout) = nullptr;
  int (*prefer)(Preference*) = nullptr;
  int (*end_preference)(Preference) = nullptr;
  int (*set_preference)(Preference, int which, const void* value, std::size_t bytes) = nullptr;
  int (*propose)(Handle, Description, Layout a, Layout b, Layout c, Layout d, Preference, int wanted, Proposal*, int* found) = nullptr;
  /// The last is a `cudaStream_t`.
  int (*multiply)(Handle, Description, const void* alpha, const void* a, Layout, const void* b, Layout, const void* beta, const void* c,
                  Layout, void* d, Layout, const Algorithm*, void* workspace, std::size_t workspace_bytes, void* stream) = nullptr;
};

/// The library of this machine, or null. Never unloaded.
const Functions* find_functions();

}  // namespace millrace::cuda::blas
