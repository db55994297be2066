// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace::cuda {

/// Adds a kernel of this program, which does so before `main`. Always true.
bool list_kernel(const void* entry);

/// Loads every listed kernel on `device`, the thread's. CUDA else loads a kernel at its first launch, and that may wait for what runs: beside a
/// kernel that waits for the one to be loaded (of NCCL, whose other ranks have gone on) it would wait for ever. CudaError, for example where the
/// program has no kernels for that device.
void load_kernels(int device);

}  // namespace millrace::cuda
