// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace millrace::detail {

/// The least limit that Linux's control groups set this process by `controller` ("cpu", "memory"): `limit_of(folder, version)` reads the limit of
/// one group, if it has one, from its folder with the files of version 1 or 2; the group of the process and all above it are asked. `root`: where
/// /proc and /sys are.
std::optional<double> least_limit(const std::filesystem::path& root, const std::string& controller,
                                  const std::function<std::optional<double>(const std::filesystem::path& folder, int version)>& limit_of);

}  // namespace millrace::detail
