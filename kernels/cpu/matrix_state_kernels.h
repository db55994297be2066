// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Steps of a matrix S [keys, values] that a recurrence keeps, such as that of linear attention (runtime/layers/linear_attention.h). Values stand in the
/// lanes, and S is read once, though it may not lie in the first cache. Each product and each sum is rounded as if it stood alone; the terms of a fold
/// are added in the order of kernels/reduce.h.
namespace millrace::cpu {

template <class T>
struct MatrixStep {
  const T* state = nullptr;     ///< S [keys, values]
  const T* decay = nullptr;     ///< g: a number for each key, `decay_step` apart; null: none
  std::int64_t decay_step = 0;  ///< 1, or 0: one number for all keys
  const T* key = nullptr;       ///< k [keys]; of `read` the only vector
  const T* added = nullptr;     ///< v [values]
  const T* rate = nullptr;      ///< β of a correction, a number; null: 1
  const T* query = nullptr;     ///< q [keys]
  T* next = nullptr;            ///< [keys, values], apart from S, or where S lies
  T* read = nullptr;            ///< [values]
  std::int64_t keys = 0;
  std::int64_t values = 0;
};

/// The steps of an iteration on one matrix; T is float or double.
template <class T>
struct MatrixFunctions {
  void (*read)(const MatrixStep<T>& step) = nullptr;     ///< read = Σ over keys of (g·S)·k
  void (*update)(const MatrixStep<T>& step) = nullptr;   ///< next = g·S + k ⊗ v, read = Σ over keys of next·q
  void (*correct)(const MatrixStep<T>& step) = nullptr;  ///< an update by β·(v − Σ over keys of (g·S)·k) in place of v
  /// `correct` of two matrices of the same extents and operands, which is faster where they have few columns.
  void (*correct_two)(const MatrixStep<T> (&steps)[2]) = nullptr;
};

/// The functions of this machine's instruction set.
template <class T>
MatrixFunctions<T> matrix_functions();
template <>
MatrixFunctions<float> matrix_functions<float>();
template <>
MatrixFunctions<double> matrix_functions<double>();

}  // namespace millrace::cpu
