// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <millrace/runtime/loops/loop_backend.h>

namespace millrace {

/// The backends that may run a while op on its device, the fastest first. The interpreter is not in the list: it stands behind it, and runs
/// any loop.
std::vector<std::shared_ptr<LoopBackend>> make_loop_backends(const LoopSite& site);

/// Why no backend of that kind is in the list of `place`: "there are no graphs of kernels on cpu".
std::string no_backend(Backend kind, const Place& place);

}  // namespace millrace
