// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/binary.h>

namespace millrace::cpu {

/// Windows along one row: out[i] = fold over t < kernel of from[i·stride + t·dilation], as kernels/pool.h.
template <class T>
struct WindowCall {
  const T* from = nullptr;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  std::int64_t count = 0;  ///< of windows
};

/// `fold`: maximum, minimum or add. For the instruction set of this machine. `out` does not overlap `from`.
void fold_windows(const WindowCall<float>& call, Binary fold, float* out);
void fold_windows(const WindowCall<double>& call, Binary fold, double* out);

}  // namespace millrace::cpu
