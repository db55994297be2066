// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/usable_memory.h>

#include <cstdint>
#include <fstream>
#include <optional>

#include <unistd.h>

#include <millrace/runtime/task/internal/control_groups.h>

namespace millrace {
namespace {

/// Nothing for "max", and without the file. A double has all bytes of a limit, which is a multiple of a page.
std::optional<double> limit_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? std::optional<double>(static_cast<double>(value)) : std::nullopt;
}

}  // namespace

std::uint64_t usable_memory(const std::filesystem::path& root) {
  const auto machine = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::optional<double> limit = detail::least_limit(root, "memory", [](const std::filesystem::path& group, int version) {
    return limit_in(group / (version == 2 ? "memory.max" : "memory.limit_in_bytes"));
  });
  return limit && *limit < static_cast<double>(machine) ? static_cast<std::uint64_t>(*limit) : machine;
}

}  // namespace millrace
