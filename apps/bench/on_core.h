// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <cstddef>
#include <vector>

namespace millrace::bench {

/// Every process that is started while it lives runs on one core: number `index` of those that this process might use before there was one of these. The one
/// that was made last counts.
class OnCore {
 public:
  explicit OnCore(int index) {
    static const std::vector<int> cores = usable_cores();
    if (cores.empty() || ::sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cores[static_cast<std::size_t>(index) % cores.size()], &one);
    changed_ = ::sched_setaffinity(0, sizeof one, &one) == 0;
  }
  ~OnCore() {
    if (changed_) ::sched_setaffinity(0, sizeof before_, &before_);
  }
  OnCore(const OnCore&) = delete;
  OnCore& operator=(const OnCore&) = delete;

 private:
  static std::vector<int> usable_cores() {
    std::vector<int> cores;
    cpu_set_t all;
    CPU_ZERO(&all);
    if (::sched_getaffinity(0, sizeof all, &all) != 0) return cores;
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &all)) cores.push_back(core);
    return cores;
  }

  cpu_set_t before_;
  bool changed_ = false;
};

}  // namespace millrace::bench
