// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/cpu_count.h>

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

namespace millrace {
namespace {

std::size_t affinity_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return static_cast<std::size_t>(CPU_COUNT(&mask));
  return std::thread::hardware_concurrency();  // more CPUs than the mask has room for
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

std::optional<double> ratio(std::string_view quota, std::string_view period) {
  const std::optional<double> above = number(quota);
  const std::optional<double> below = number(period);
  if (!above || !below || !(*above > 0) || !(*below > 0)) return std::nullopt;
  return *above / *below;
}

/// The least quota from `group` up to `top`, asked of each folder by `quota_of`.
template <class QuotaOf>
std::optional<double> least_quota(const std::filesystem::path& top, std::filesystem::path group, QuotaOf quota_of) {
  std::optional<double> least;
  for (;; group = group.parent_path()) {
    const std::optional<double> own = quota_of(top / group);
    if (own && (!least || *own < *least)) least = own;
    if (group.empty()) return least;
  }
}

std::optional<double> quota_v2(const std::filesystem::path& group) { return parse_cpu_max(first_line(text_of(group / "cpu.max"))); }

std::optional<double> quota_v1(const std::filesystem::path& group) {
  const std::string quota = text_of(group / "cpu.cfs_quota_us");
  const std::string period = text_of(group / "cpu.cfs_period_us");
  return ratio(first_line(quota), first_line(period));
}

}  // namespace

std::optional<double> parse_cpu_max(std::string_view text) {
  const auto space = text.find(' ');
  if (space == text.npos) return std::nullopt;
  return ratio(text.substr(0, space), text.substr(space + 1));
}

std::optional<double> cgroup_cpus(const std::filesystem::path& root) {
  std::optional<double> least;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b" (version 2), "4:cpu,cpuacct:/a/b" (version 1)
    const auto controllers = line.find(':');
    const auto path = controllers == line.npos ? line.npos : line.find(":/", controllers);
    if (path == line.npos) continue;
    const std::string names = "," + line.substr(controllers + 1, path - controllers - 1) + ",";
    const std::filesystem::path group = line.substr(path + 2);
    std::optional<double> own;
    if (names == ",,") own = least_quota(root / "sys/fs/cgroup", group, quota_v2);
    if (names.find(",cpu,") != names.npos) own = least_quota(root / "sys/fs/cgroup/cpu", group, quota_v1);
    if (own && (!least || *own < *least)) least = own;
  }
  return least;
}

std::size_t usable_cpus() {
  std::size_t count = affinity_cpus();
  if (const std::optional<double> quota = cgroup_cpus())
    count = std::min(count, static_cast<std::size_t>(std::ceil(std::min(*quota, 1e6))));
  return std::max<std::size_t>(1, count);
}

}  // namespace millrace
