// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <millrace/runtime/loops/loop_backend.h>

namespace millrace {

/// The backend that runs a loop as a CUDA graph of an iteration's kernels (captured_loop.h).
std::shared_ptr<LoopBackend> make_captured_backend(LoopSite site);

}  // namespace millrace
