// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/memory.h>

#include <array>
#include <new>
#include <string>
#include <utility>

#include <millrace/tensor/error.h>
#include <millrace/tensor/sanitized.h>

namespace millrace {
namespace {

constexpr std::align_val_t alignment{64};

constinit thread_local bool blocks_ended = false;

/// Small blocks that a thread has given back. Aligned memory of the heap costs several times as much as the tensor of a shape or of a state around it.
class SmallBlocks {
 public:
  static constexpr std::size_t least = 64;
  static constexpr std::size_t most = 8 << 10;
  static constexpr std::size_t most_kept = 256 << 10;  // bytes of a thread, beyond which memory goes back to the heap

  SmallBlocks() = default;
  SmallBlocks(const SmallBlocks&) = delete;
  SmallBlocks& operator=(const SmallBlocks&) = delete;
  ~SmallBlocks() {
    blocks_ended = true;
    for (Block*& first : first_)
      while (first != nullptr) ::operator delete(std::exchange(first, first->next), alignment);
  }

  void* take(std::size_t bytes) noexcept {
    Block*& first = first_[bytes / least];
    if (first == nullptr) return nullptr;
    kept_ -= bytes;
    return std::exchange(first, first->next);
  }
  bool keep(void* pointer, std::size_t bytes) noexcept {
    if (kept_ + bytes > most_kept) return false;
    Block*& first = first_[bytes / least];
    first = new (pointer) Block{first};
    kept_ += bytes;
    return true;
  }

 private:
  struct Block {
    Block* next;
  };
  std::array<Block*, most / least + 1> first_{};
  std::size_t kept_ = 0;
};

/// Null while the thread is ending: then memory comes from the heap.
SmallBlocks* small_blocks() {
  if (blocks_ended) return nullptr;
  thread_local SmallBlocks blocks;
  return &blocks;
}

class HostMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes) override {
    const std::size_t size = whole(bytes);
    SmallBlocks* const blocks = is_small(size) ? small_blocks() : nullptr;
    void* pointer = blocks == nullptr ? nullptr : blocks->take(size);
    if (pointer == nullptr && size >= bytes) pointer = ::operator new(size, alignment, std::nothrow);
    if (pointer == nullptr) throw OutOfMemoryError("memory on cpu: " + std::to_string(bytes) + " bytes were refused by the heap");
    return pointer;
  }
  void deallocate(void* pointer, std::size_t bytes) noexcept override {
    const std::size_t size = whole(bytes);
    SmallBlocks* const blocks = is_small(size) ? small_blocks() : nullptr;
    if (blocks == nullptr || !blocks->keep(pointer, size)) ::operator delete(pointer, alignment);
  }
  Place place() const override { return CpuPlace{}; }
  bool host_accessible() const noexcept override { return true; }

 private:
  static bool is_small(std::size_t size) { return !sanitized && size <= SmallBlocks::most; }
  /// With a tail of one vector, which lets kernels read whole vectors at the end of a block. Less than `bytes` where there is no such number.
  static std::size_t whole(std::size_t bytes) {
    constexpr std::size_t tail = 64;
    return bytes > ~std::size_t{0} - 2 * tail ? 0 : (bytes + tail + SmallBlocks::least - 1) / SmallBlocks::least * SmallBlocks::least;
  }
};

}  // namespace

const std::shared_ptr<MemoryResource>& host_memory() {
  static const std::shared_ptr<MemoryResource> heap = std::make_shared<HostMemory>();
  return heap;
}

Allocation::Allocation(std::shared_ptr<MemoryResource> resource, std::size_t bytes)
    : resource_(std::move(resource)), data_(static_cast<std::byte*>(resource_->allocate(bytes))), bytes_(bytes) {}

Allocation::~Allocation() { resource_->deallocate(data_, bytes_); }

Point Allocation::ready() const {
  if (!pending_.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(mutex_);
  return ready_;
}

void Allocation::set_ready(Point point) {
  const bool pending = !point.reached();
  if (!pending && !pending_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  ready_ = pending ? std::move(point) : Point{};
  pending_.store(pending, std::memory_order_release);
}

}  // namespace millrace
