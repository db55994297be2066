// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

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

/// The allocations of the calling thread that fail with std::bad_alloc, from now.
struct AllocationFaults {
  std::size_t bytes = 0;                 ///< those of as many or more
  std::optional<std::uint64_t> at = {};  ///< of them the one behind so many; none: all
};
/// False where allocations cannot be made to fail (ThreadSanitizer).
bool fail_allocations(const AllocationFaults& faults) noexcept;
/// Failed allocations of the calling thread since `fail_allocations`; none fails from now.
std::uint64_t end_allocation_faults() noexcept;

}  // namespace millrace::testing
