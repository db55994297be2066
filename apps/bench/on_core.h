// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <cstddef>
#include <vector>

namespace millrace::bench {

/// Every process that is started while it lives runs on one core: number `index` of those that this process may use.
class OnCore {
 public:
  explicit OnCore(int index) {
    CPU_ZERO(&before_);
    if (::sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &before_)) cores.push_back(core);
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
  cpu_set_t before_;
  bool changed_ = false;
};

}  // namespace millrace::bench
