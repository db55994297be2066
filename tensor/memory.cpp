// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/memory.h>

#include <string>
#include <utility>

#include <millrace/tensor/error.h>
#include <millrace/tensor/pool.h>

namespace millrace {
namespace {

class HostMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes) override {
    const std::size_t size = whole(bytes);
    void* const memory = size < bytes ? nullptr : internal::take_lines(size);
    if (memory == nullptr) throw OutOfMemoryError("memory on cpu: " + std::to_string(bytes) + " bytes were refused by the heap");
    return memory;
  }
  void deallocate(void* memory, std::size_t bytes) noexcept override { internal::give_lines(memory, whole(bytes)); }
  Place place() const override { return CpuPlace{}; }
  bool host_accessible() const noexcept override { return true; }

 private:
  /// With a tail of one vector, which lets kernels read whole vectors at the end of a block. Less than `bytes` where there is no such number.
  static std::size_t whole(std::size_t bytes) {
    constexpr std::size_t line = internal::line_bytes;
    return bytes > ~std::size_t{0} - 2 * line ? 0 : (bytes + 2 * line - 1) / line * line;
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

void Allocation::set_ready(const Point& point) {
  const bool pending = !point.reached();
  if (!pending && !pending_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  ready_ = pending ? point : Point{};
  pending_.store(pending, std::memory_order_release);
}

}  // namespace millrace
