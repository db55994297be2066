// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <set>
#include <vector>

/// As much of cuBLASLt as the sources below with_cuda/ use. The machine has none until something is offered.
namespace emulated {

enum class BlasAlgorithm {
  ours,       ///< the sums of our own kernels
  pairwise,   ///< other sums
  by_rows,    ///< ours from nine rows on, other sums below
  refuses,    ///< no product at all
  lazy,       ///< says that it worked, and writes nothing
  up_to_256,  ///< ours; refuses 300 rows
  few_rows,   ///< ours up to 256 rows, other sums beyond
};

/// Sets the algorithms that are proposed from now on, in this order, for any product; with a workspace or without.
void offer_blas(const std::vector<BlasAlgorithm>& algorithms, std::size_t workspace_bytes = 0);

struct BlasUse {
  std::size_t proposals = 0, products = 0;
  std::size_t most_columns = 0;  ///< of a product: rows, as we see them
  std::map<BlasAlgorithm, std::size_t> of;
  std::map<cudaStream_t, std::set<void*>> workspaces;
};
/// Since the last offer.
BlasUse blas_use();

}  // namespace emulated
