// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <millrace/runtime/loops/loop_backend.h>

namespace millrace {

/// The backend that runs a loop over any row-wise cell as one kernel, generated for it (device_cell.h).
std::shared_ptr<LoopBackend> make_cell_backend(LoopSite site);

}  // namespace millrace
