// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace millrace::app {

/// This process becomes the program `name` that lies beside its own, with the arguments `words`. IoError, naming it, when it cannot be
/// started.
[[noreturn]] void become(const std::string& name, const std::vector<std::string>& words);

}  // namespace millrace::app
