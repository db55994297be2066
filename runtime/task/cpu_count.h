// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string_view>

namespace millrace {

/// CPUs that this process may keep busy: those of its affinity mask, but no more than the quota of its cgroup, rounded up. At least 1.
std::size_t usable_cpus();

/// CPUs of a quota as cgroup v2's `cpu.max` has it: "150000 100000" is 1.5, "max 100000" and text of another form is none.
/// Source: the kernel's Documentation/admin-guide/cgroup-v2.rst.
std::optional<double> parse_cpu_max(std::string_view text);

/// The least quota of the cgroups around this process. `root` is where /proc and /sys are.
std::optional<double> cgroup_cpus(const std::filesystem::path& root = "/");

}  // namespace millrace
