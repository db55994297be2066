// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace millrace {

/// Bytes of memory that this process may use: what the machine has, and no more than the least `memory.max` (version 2) or
/// `memory.limit_in_bytes` (version 1) of the process's control groups. `root` is where /proc and /sys are looked for.
std::uint64_t usable_memory(const std::filesystem::path& root = "/");

}  // namespace millrace
