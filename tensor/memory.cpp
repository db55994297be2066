// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/memory.h>

#include <new>
#include <string>

#include <millrace/tensor/error.h>

namespace millrace {
namespace {

constexpr std::align_val_t alignment{64};

class HostMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes) override {
    // A tail of one vector lets kernels read whole vectors at the end of a block.
    constexpr std::size_t tail = 64;
    void* pointer = bytes > ~std::size_t{0} - tail ? nullptr : ::operator new(bytes + tail, alignment, std::nothrow);
    if (pointer == nullptr) throw OutOfMemoryError("memory on cpu: " + std::to_string(bytes) + " bytes were refused by the heap");
    return pointer;
  }
  void deallocate(void* pointer, std::size_t) noexcept override { ::operator delete(pointer, alignment); }
  Place place() const override { return CpuPlace{}; }
  bool host_accessible() const noexcept override { return true; }
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
