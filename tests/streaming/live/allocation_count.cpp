// SPDX-License-Identifier: Apache-2.0
#include <streaming/live/allocation_count.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>

// ThreadSanitizer brings operators of its own, and calls a hook for each block of memory.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MILLRACE_ALLOCATIONS_BY_HOOK
#include <sanitizer/allocator_interface.h>
#endif
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<std::uint64_t> calls{0};

#ifdef MILLRACE_ALLOCATIONS_BY_HOOK

[[maybe_unused]] const int installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t) {
      if (counting.load(std::memory_order_relaxed)) calls.fetch_add(1, std::memory_order_relaxed);
    },
    [](const volatile void*) {});

}  // namespace

#else

thread_local std::optional<millrace::testing::AllocationFaults> faults;
thread_local std::uint64_t failed = 0;

bool fails(std::size_t bytes) noexcept {
  if (!faults || bytes < faults->bytes) return false;
  const bool now = !faults->at || *faults->at == 0;
  if (faults->at && (*faults->at)-- == 0) faults.reset();
  failed += now ? 1 : 0;
  return now;
}

void* counted(std::size_t bytes, std::size_t alignment) noexcept {
  if (fails(bytes)) return nullptr;
  if (counting.load(std::memory_order_relaxed)) calls.fetch_add(1, std::memory_order_relaxed);
  const std::size_t most = static_cast<std::size_t>(-1) - alignment;
  if (bytes > most) return nullptr;
  // aligned_alloc takes whole multiples of the alignment.
  return alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__ ? std::malloc(bytes == 0 ? 1 : bytes)
                                                       : std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}

void* counted_or_thrown(std::size_t bytes, std::size_t alignment) {
  if (void* const made = counted(bytes, alignment)) return made;
  throw std::bad_alloc();
}

constexpr std::size_t usual = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

// The other forms of the standard library end in these.
void* operator new(std::size_t bytes) { return counted_or_thrown(bytes, usual); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes, usual); }
void* operator new(std::size_t bytes, std::align_val_t at) { return counted_or_thrown(bytes, static_cast<std::size_t>(at)); }
void* operator new(std::size_t bytes, std::align_val_t at, const std::nothrow_t&) noexcept {
  return counted(bytes, static_cast<std::size_t>(at));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

#endif

namespace millrace::testing {

#ifdef MILLRACE_ALLOCATIONS_BY_HOOK
bool fail_allocations(const AllocationFaults&) noexcept { return false; }
std::uint64_t end_allocation_faults() noexcept { return 0; }
#else
bool fail_allocations(const AllocationFaults& asked) noexcept {
  failed = 0;
  faults = asked;
  return true;
}
std::uint64_t end_allocation_faults() noexcept {
  faults.reset();
  return failed;
}
#endif

AllocationCount::AllocationCount() noexcept {
  calls = 0;
  counting = true;
}
AllocationCount::~AllocationCount() { counting = false; }

std::uint64_t AllocationCount::stop() noexcept {
  counting = false;
  return calls;
}

}  // namespace millrace::testing
