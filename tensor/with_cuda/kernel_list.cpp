// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/with_cuda/kernel_list.h>

#include <vector>

#include <millrace/tensor/with_cuda/check.h>

namespace millrace::cuda {
namespace {

/// Filled before `main` in an unspecified order, and only read after.
std::vector<const void*>& kernels() {
  static std::vector<const void*> all;
  return all;
}

}  // namespace

bool list_kernel(const void* entry) {
  kernels().push_back(entry);
  return true;
}

void load_kernels(int device) {
  for (const void* const entry : kernels()) {
    cudaFuncAttributes attributes = {};
    check(cudaFuncGetAttributes(&attributes, entry), "cudaFuncGetAttributes", device);
  }
}

}  // namespace millrace::cuda
