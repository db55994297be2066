// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::cpu {

/// Panels of places times all weights of a group: out[unit·out_stride + place] = Σ_k weights[unit·k + k'] · x[offsets[k'] + place] (+ bias[unit]),
/// then relu where asked; the dot product of kernels/gemm.h. All places of a panel are read and written.
template <class T>
struct ConvCall {
  const T* x = nullptr;     ///< of the first place
  std::int64_t panels = 1;  ///< side by side, in x and in out; one where k is more than k_block
  int vectors = 4;          ///< of a panel's places: panel_vectors, or without `copy` 1 to 3
  const std::int64_t* offsets = nullptr;
  T* copy =
      nullptr;  ///< room for the places of one block of k of each panel, at the start of a cache line; null: they are read where they lie by all units
  std::int64_t k = 0;
  /// Where k are left out that see padding alone: how many of each block of k_block are left, by block. Null: none is left out.
  const std::int64_t* block_k = nullptr;
  const T* weights = nullptr;  ///< [units, k]
  std::int64_t units = 0;
  const T* bias = nullptr;  ///< [units] or null
  bool relu = false;
  T* out = nullptr;
  std::int64_t out_stride = 0;
};

/// For the instruction set of this machine.
void conv_panel(const ConvCall<float>& call);
void conv_panel(const ConvCall<double>& call);

}  // namespace millrace::cpu
