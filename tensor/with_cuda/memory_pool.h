// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <millrace/tensor/memory.h>
#include <millrace/tensor/with_cuda/stream_state.h>

namespace millrace::cuda {

inline constexpr std::size_t most_streams = 16;
inline constexpr std::size_t no_stream = most_streams;

/// The memory of one device, in stream order and within a budget. A block belongs to the stream whose resource it came from (or to none), and
/// knows which other streams used it. Given back, it serves its stream again at once; another stream, or a caller that names none, gets it
/// when those that used it are done, or else behind their positions. Thread-safe.
class MemoryPool {
 public:
  MemoryPool(int device, std::size_t budget) : device_(device), budget_(budget) {}
  /// Every block must have been given back.
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Before the first `allocate`.
  void add(std::shared_ptr<StreamState> stream) { streams_.push_back(std::move(stream)); }

  /// For stream `home`, or for `no_stream`. When the budget or the device has no room, what is cached is freed and the allocation tried once
  /// more; OutOfMemoryError names sizes.
  void* allocate(std::size_t bytes, std::size_t home);
  void deallocate(void* pointer, std::size_t home) noexcept;
  /// Stream `stream` uses memory that is not its own: `pointer` is anywhere within a block.
  void used(std::byte* pointer, std::size_t stream);

  int device() const noexcept { return device_; }
  const Queue& queue(std::size_t stream) const { return streams_.at(stream)->queue(); }
  void release_cached() noexcept;

 private:
  /// A position of each stream behind which the block is free; 0: did not use it.
  using Uses = std::array<std::uint64_t, most_streams>;
  struct Block {
    void* pointer = nullptr;
    Uses uses{};
  };
  struct Class {
    std::size_t blocks = 0;
    std::vector<Block> free;
  };
  struct Live {
    std::size_t size = 0;
    std::uint32_t users = 0;
  };

  bool done(const Uses& uses, std::size_t home, std::uint32_t& asked) const;
  std::size_t find(const std::vector<Block>& free, std::size_t home) const;
  void* from_device(std::size_t size);
  bool handed(const Uses& uses) const;
  void release() noexcept;
  void wait(const Uses& uses, std::size_t home) const;
  [[noreturn]] void refuse(std::size_t bytes, std::size_t size) const;

  int device_;
  std::size_t budget_;
  std::vector<std::shared_ptr<StreamState>> streams_;
  std::mutex mutex_;
  std::map<std::size_t, Class> classes_;
  std::map<std::byte*, Live> live_;
  std::size_t in_use_ = 0;
  std::size_t cached_ = 0;
};

/// The pool as one stream, or no stream in particular, takes from it.
class DeviceMemory final : public MemoryResource {
 public:
  DeviceMemory(std::shared_ptr<MemoryPool> pool, std::size_t home) : pool_(std::move(pool)), home_(home) {}
  void* allocate(std::size_t bytes) override { return pool_->allocate(bytes, home_); }
  void deallocate(void* pointer, std::size_t) noexcept override { pool_->deallocate(pointer, home_); }
  Place place() const override { return CudaPlace{pool_->device()}; }
  bool host_accessible() const noexcept override { return false; }
  const std::shared_ptr<MemoryPool>& pool() const noexcept { return pool_; }
  std::size_t home() const noexcept { return home_; }

 private:
  std::shared_ptr<MemoryPool> pool_;
  std::size_t home_;
};

}  // namespace millrace::cuda
