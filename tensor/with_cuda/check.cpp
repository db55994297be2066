// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/with_cuda/check.h>

#include <string>

#include <millrace/tensor/cuda_device.h>

namespace millrace::cuda {

bool is_sticky(cudaError_t code) {
  constexpr int nvlink_uncorrectable = 220, contained = 226, tensor_memory_leak = 721, external_device = 911;  // not of every toolkit
  switch (static_cast<int>(code)) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case nvlink_uncorrectable:
    case contained:
    case tensor_memory_leak:
    case external_device:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

namespace {

CudaError made(cudaError_t code, const char* call, int device, const std::string& where) {
  const bool lasting = is_sticky(code);
  if (!lasting) static_cast<void>(cudaGetLastError());  // else the next launch would report it again
  return CudaError(std::string(call) + " on cuda:" + std::to_string(device) + ": " + cudaGetErrorString(code) + " (" +
                       cudaGetErrorName(code) + ")" + where,
                   static_cast<int>(code), lasting);
}

}  // namespace

void check(cudaError_t code, const char* call, int device) {
  if (code != cudaSuccess) throw made(code, call, device, "");
}

std::exception_ptr error_of(cudaError_t code, const char* call, int device, const std::string& where) {
  return std::make_exception_ptr(made(code, call, device, where));
}

}  // namespace millrace::cuda
