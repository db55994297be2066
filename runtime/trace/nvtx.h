// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <millrace/runtime/trace/tracer.h>

namespace millrace {

/// Ranges of NVTX, in a domain "millrace" with a category for each of ours, as Nsight Systems and other tools that are attached to the process
/// show them; where none is, a range costs a few instructions. UnsupportedError in a build without CUDA.
std::shared_ptr<RangeSink> make_nvtx_ranges();

}  // namespace millrace
