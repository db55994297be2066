// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace millrace::bench {

/// oneDNN's product out[m, n] = x[m, k] · w[k, n] of row-major f32 on one thread, with its weights in the order it
/// prefers.
struct GemmPeer {
  std::function<void()> run;  ///< empty where this build has no oneDNN
  std::string note;           ///< then says so
};

/// Uses the three arrays until it is destroyed.
GemmPeer make_gemm_peer(std::int64_t m, std::int64_t k, std::int64_t n, float* x, float* w, float* out);

}  // namespace millrace::bench
