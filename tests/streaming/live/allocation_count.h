// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::testing {

/// Calls of operator new (under ThreadSanitizer: and of malloc) by all threads of this program while one of these lives. One at a time.
class AllocationCount {
 public:
  AllocationCount() noexcept;
  ~AllocationCount();
  AllocationCount(const AllocationCount&) = delete;
  AllocationCount& operator=(const AllocationCount&) = delete;

  /// Stops counting.
  std::uint64_t stop() noexcept;
};

}  // namespace millrace::testing
