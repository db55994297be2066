// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_graph/tick_graph.h>

#include <millrace/tensor/error.h>

namespace millrace::cuda {

std::shared_ptr<TickGraph> record_tick(const std::shared_ptr<RecordingDevice>&, const TickStep&) {
  throw UnsupportedError("graphs of CUDA: this build has no CUDA");
}

}  // namespace millrace::cuda
