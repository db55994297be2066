// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_graph/loop_graph.h>

#include <millrace/tensor/error.h>

namespace millrace::cuda {

std::shared_ptr<LoopGraph> record_loop(const std::shared_ptr<RecordingDevice>&, const LoopIteration&) {
  throw UnsupportedError("graphs of CUDA: this build has no CUDA");
}

}  // namespace millrace::cuda
