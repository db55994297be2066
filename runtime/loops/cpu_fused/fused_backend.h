// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <millrace/runtime/loops/loop_backend.h>

namespace millrace {

/// The backend that runs a loop as rows and iterations as row plans on the CPU (fused_loop.h).
std::shared_ptr<LoopBackend> make_fused_backend(LoopSite site);

}  // namespace millrace
