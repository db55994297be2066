// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/internal/control_groups.h>

#include <fstream>

namespace millrace::detail {

std::optional<double> least_limit(const std::filesystem::path& root, const std::string& controller,
                                  const std::function<std::optional<double>(const std::filesystem::path& folder, int version)>& limit_of) {
  std::optional<double> least;
  const auto ask = [&](const std::filesystem::path& top, std::filesystem::path group, int version) {
    for (;; group = group.parent_path()) {
      const std::optional<double> own = limit_of(top / group, version);
      if (own && (!least || *own < *least)) least = own;
      if (group.empty()) return;
    }
  };
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b" (version 2), "4:cpu,cpuacct:/a/b" (version 1)
    const auto controllers = line.find(':');
    const auto path = controllers == line.npos ? line.npos : line.find(":/", controllers);
    if (path == line.npos) continue;
    const std::string names = "," + line.substr(controllers + 1, path - controllers - 1) + ",";
    const std::filesystem::path group = line.substr(path + 2);
    if (names == ",,") ask(root / "sys/fs/cgroup", group, 2);
    if (names.find("," + controller + ",") != names.npos) ask(root / "sys/fs/cgroup" / controller, group, 1);
  }
  return least;
}

}  // namespace millrace::detail
