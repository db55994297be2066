// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::cpu {

/// A convolution in groups at one place, units in the lanes: out[u] = Σ_k weights[k·units + u] · x[bases[u] + offsets[k]]; the dot product of
/// kernels/gemm.h. A unit's base is where the channels of its group begin.
template <class T, class Index>
struct GroupedCall {
  const T* x = nullptr;
  const Index* bases = nullptr;
  const Index* offsets = nullptr;
  std::int64_t k = 0;
  const T* weights = nullptr;
  std::int64_t units = 0;
  T* out = nullptr;
};

/// For the instruction set of this machine.
void grouped_units(const GroupedCall<float, std::int32_t>& call);
void grouped_units(const GroupedCall<double, std::int64_t>& call);

}  // namespace millrace::cpu
