// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/cpu/conv_ending.h>

namespace millrace::cpu {

/// Where lanes [first, first + count) of a vector of places go: to elements `to` … of the results of each unit.
struct PlaceStore {
  int first, count;
  std::int64_t to;
};

/// Panels of places times all weights of a group: the result of a unit at a place is Σ_k weights[unit·k + k'] · x[offsets[k'] + place] (+ bias[unit]), then
/// relu where asked, then the ending; the dot product of kernels/gemm.h. All places of a panel are read; those are written that a store names.
template <class T>
struct ConvCall {
  const T* x = nullptr;     ///< of the first place
  std::int64_t panels = 1;  ///< side by side in x; one where k is more than k_block
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
  ConvEnding<T> ending;
  T* sums = nullptr;  ///< room for [units, places of a panel] where k is more than k_block: sums of the blocks so far
  T* out = nullptr;
  std::int64_t out_stride = 0;  ///< from unit to unit
  /// Vector v of panel p has stores[begins[p·panel_vectors + v]] … up to those of the next one.
  const PlaceStore* stores = nullptr;
  const std::int32_t* begins = nullptr;
};

/// Some places times one panel of units (packing.h), the units in the lanes: sums[row·vectors·lanes + unit] = Σ_k weights[k·vectors·lanes + unit] ·
/// places[row][offsets[k]] (+ bias[unit]), then relu where asked, then the ending; the dot product of kernels/gemm.h.
template <class T>
struct UnitsCall {
  const T* const* places = nullptr;  ///< the element that the first k of each place sees
  std::int64_t rows = 0;             ///< places
  const std::int64_t* offsets = nullptr;
  std::int64_t k = 0;
  const T* weights = nullptr;
  int vectors = 1;          ///< at most GemmKernels::panel
  const T* bias = nullptr;  ///< [vectors·lanes] or null
  bool relu = false;
  ConvEnding<T> ending;
  T* sums = nullptr;
};

/// For the instruction set of this machine.
void conv_panel(const ConvCall<float>& call);
void conv_panel(const ConvCall<double>& call);
void conv_unit_panel(const UnitsCall<float>& call);
void conv_unit_panel(const UnitsCall<double>& call);

}  // namespace millrace::cpu
