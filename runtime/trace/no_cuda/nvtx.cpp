// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/trace/nvtx.h>

#include <millrace/tensor/error.h>

namespace millrace {

std::shared_ptr<RangeSink> make_nvtx_ranges() { throw UnsupportedError("NVTX ranges: this build has no CUDA"); }

}  // namespace millrace
