// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_recurrent/lstm_backend.h>

#include <millrace/runtime/loops/cuda_recurrent/device_lstm.h>
#include <millrace/runtime/loops/cuda_recurrent/internal/kernel_backend.h>

namespace millrace {

std::shared_ptr<LoopBackend> make_lstm_backend(LoopSite site) { return std::make_shared<KernelBackend<DeviceLstm>>(std::move(site)); }

}  // namespace millrace
