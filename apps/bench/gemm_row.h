// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <bench/row.h>

namespace millrace::bench {

/// f32 out[m, n] = x[m, k] · w[k, n], weights packed before, on one thread, beside oneDNN's matmul. Set
/// OMP_NUM_THREADS=1 for the peer.
Row gemm_row(std::int64_t m, std::int64_t k, std::int64_t n);

}  // namespace millrace::bench
