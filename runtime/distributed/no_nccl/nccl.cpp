// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/nccl.h>

namespace millrace {

std::string nccl_status() { return "not in this build"; }

std::unique_ptr<Communicator> make_nccl_communicator(Rendezvous&, const NcclOptions& options) {
  throw UnsupportedError("communicator '" + options.name +
                         "': this build has no NCCL: build with MILLRACE_NCCL=ON, the CUDA Toolkit, and NVIDIA's package libnccl-dev");
}

}  // namespace millrace
