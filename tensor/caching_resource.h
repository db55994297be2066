// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <millrace/tensor/memory.h>

namespace millrace {

/// Keeps what is given back and hands it out again, over another resource of the same place, within a budget. Thread-safe.
///
/// Sizes are rounded up to classes, four to each power of two and at least 64 bytes; the budget and the statistics count these. A block
/// that is given back may be handed out at once: the party that enqueues work owns the tensors it touches until it has run, so no stream still
/// uses it.
class CachingResource final : public MemoryResource {
 public:
  /// All in bytes, but for the counts of calls.
  struct Statistics {
    std::size_t in_use = 0;  ///< handed out now
    std::size_t cached = 0;  ///< given back and kept
    std::size_t peak = 0;    ///< the most that `in_use` ever was
    std::size_t budget = 0;
    std::uint64_t allocations = 0;           ///< calls that succeeded
    std::uint64_t upstream_allocations = 0;  ///< those that the cache could not serve
  };
  static constexpr std::size_t unlimited = ~std::size_t{0};

  explicit CachingResource(std::shared_ptr<MemoryResource> upstream, std::size_t budget = unlimited);
  /// Every block must have been given back.
  ~CachingResource() override;

  /// When the budget or the upstream resource has no room, the cache is freed and the allocation tried once more; OutOfMemoryError then
  /// names the size asked for, what is in use and the budget.
  void* allocate(std::size_t bytes) override;
  void deallocate(void* pointer, std::size_t bytes) noexcept override;
  Place place() const override;
  bool host_accessible() const noexcept override;

  /// Gives all cached blocks back to the upstream resource.
  void release_cached() noexcept;
  Statistics statistics() const;

  /// The bytes that an allocation of `bytes` counts as. OutOfMemoryError when no class is that large.
  static std::size_t class_size(std::size_t bytes);

 private:
  struct Cache;
  std::unique_ptr<Cache> cache_;
};

}  // namespace millrace
