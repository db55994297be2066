// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <exception>
#include <string>

namespace millrace::cuda {

/// CudaError unless `code` is success: "cudaMalloc on cuda:0: out of memory (cudaErrorMemoryAllocation)".
void check(cudaError_t code, const char* call, int device);
/// Whether the device's context is unusable after such a failure.
bool is_sticky(cudaError_t code);
/// The same as what a timeline fails with; `where` stands at the end.
std::exception_ptr error_of(cudaError_t code, const char* call, int device, const std::string& where);

/// Makes `index` the thread's device as long as it lives.
class OnDevice {
 public:
  explicit OnDevice(int index) {
    check(cudaGetDevice(&before_), "cudaGetDevice", index);
    if (before_ != index) check(cudaSetDevice(index), "cudaSetDevice", index);
    changed_ = before_ != index;
  }
  ~OnDevice() {
    if (changed_) static_cast<void>(cudaSetDevice(before_));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace millrace::cuda
