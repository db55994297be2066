// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_recurrent/cell_backend.h>

#include <millrace/runtime/loops/cuda_recurrent/device_cell.h>
#include <millrace/runtime/loops/cuda_recurrent/internal/kernel_backend.h>

namespace millrace {

std::shared_ptr<LoopBackend> make_cell_backend(LoopSite site) { return std::make_shared<KernelBackend<DeviceCell>>(std::move(site)); }

}  // namespace millrace
