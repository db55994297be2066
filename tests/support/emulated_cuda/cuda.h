// SPDX-License-Identifier: Apache-2.0
// The driver's types that the sources name, for the emulation: see cuda_runtime_api.h.
#pragma once

#include <cuda_runtime_api.h>

using CUstream = cudaStream_t;
using CUdeviceptr = unsigned long long;
using cuuint64_t = std::uint64_t;
enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_UNKNOWN = 999 };
