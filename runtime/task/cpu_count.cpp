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

#include <millrace/runtime/task/internal/control_groups.h>

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
  return detail::least_limit(
      root, "cpu", [](const std::filesystem::path& group, int version) { return version == 2 ? quota_v2(group) : quota_v1(group); });
}

std::size_t usable_cpus() {
  std::size_t count = affinity_cpus();
  if (const std::optional<double> quota = cgroup_cpus())
    count = std::min(count, static_cast<std::size_t>(std::ceil(std::min(*quota, 1e6))));
  return std::max<std::size_t>(1, count);
}

}  // namespace millrace
