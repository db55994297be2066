// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/usable_memory.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include <unistd.h>

namespace millrace {
namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

/// The number that a file holds; `unlimited` for "max", and without the file.
std::uint64_t number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : unlimited;
}

/// The least of the files called `name` from `group` up to `top`.
std::uint64_t least_of(const std::filesystem::path& top, std::filesystem::path group, const char* name) {
  std::uint64_t least = unlimited;
  for (;; group = group.parent_path()) {
    least = std::min(least, number_in(top / group / name));
    if (group.empty()) return least;
  }
}

std::uint64_t group_limit(const std::filesystem::path& root) {
  std::uint64_t least = unlimited;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b" (version 2), "4:memory:/a/b" (version 1)
    const auto controllers = line.find(':');
    const auto path = controllers == line.npos ? line.npos : line.find(":/", controllers);
    if (path == line.npos) continue;
    const std::string names = "," + line.substr(controllers + 1, path - controllers - 1) + ",";
    const std::filesystem::path group = line.substr(path + 2);
    if (names == ",,") least = std::min(least, least_of(root / "sys/fs/cgroup", group, "memory.max"));
    if (names.find(",memory,") != names.npos)
      least = std::min(least, least_of(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
  }
  return least;
}

}  // namespace

std::uint64_t usable_memory(const std::filesystem::path& root) {
  const auto machine = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return std::min(machine, group_limit(root));
}

}  // namespace millrace
