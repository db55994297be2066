// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/cuda/recording_device.h>

#include <millrace/tensor/error.h>

namespace millrace::cuda {

std::shared_ptr<RecordingDevice> make_recording_device(std::shared_ptr<Device>, std::size_t) {
  throw UnsupportedError("graphs of CUDA: this build has no CUDA");
}

}  // namespace millrace::cuda
