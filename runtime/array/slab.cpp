// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/slab.h>

#include <string>
#include <utility>

#include <millrace/tensor/checked.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

/// Hands out one part of an allocation, and keeps the whole alive.
class PartOfSlab final : public MemoryResource {
 public:
  PartOfSlab(std::shared_ptr<Allocation> whole, std::byte* part) : whole_(std::move(whole)), part_(part) {}
  void* allocate(std::size_t) override { return part_; }
  void deallocate(void*, std::size_t) noexcept override {}
  Place place() const override { return whole_->resource().place(); }
  bool host_accessible() const noexcept override { return whole_->resource().host_accessible(); }

 private:
  std::shared_ptr<Allocation> whole_;
  std::byte* part_;
};

}  // namespace

Slab::Slab(DType dtype, std::vector<std::int64_t> offsets, std::shared_ptr<MemoryResource> memory)
    : dtype_(dtype),
      offsets_(std::move(offsets)),
      storage_(std::make_shared<Allocation>(std::move(memory), checked_mul(static_cast<std::size_t>(offsets_.back()), size_of(dtype)))),
      slots_(offsets_.size() - 1) {}

std::int64_t Slab::elements(std::int64_t slot) const {
  return offsets_[static_cast<std::size_t>(slot) + 1] - offsets_[static_cast<std::size_t>(slot)];
}

Tensor Slab::slot(std::int64_t slot, const DDim& dims) {
  if (dims.elements() != elements(slot))
    throw ShapeError("slab: slot " + std::to_string(slot) + " holds " + std::to_string(elements(slot)) + " elements, found " +
                     dims.to_string());
  std::weak_ptr<Allocation>& record = slots_[static_cast<std::size_t>(slot)];
  std::shared_ptr<Allocation> part = record.lock();
  if (part == nullptr) {
    std::byte* at = storage_->data() + static_cast<std::size_t>(offsets_[static_cast<std::size_t>(slot)]) * size_of(dtype_);
    part = std::make_shared<Allocation>(std::make_shared<PartOfSlab>(storage_, at),
                                        static_cast<std::size_t>(elements(slot)) * size_of(dtype_));
    record = part;
  }
  return Tensor(dtype_, dims, dims.row_major(), 0, std::move(part));
}

bool Slab::holds(std::int64_t slot, const Tensor& tensor) const {
  const std::byte* at = storage_->data() + static_cast<std::size_t>(offsets_[static_cast<std::size_t>(slot)]) * size_of(dtype_);
  return tensor.dtype() == dtype_ && tensor.is_contiguous() && tensor.elements() == elements(slot) && tensor.raw() == at;
}

Tensor part_of(const Tensor& rows, Point ready) {
  auto* const at = static_cast<std::byte*>(const_cast<void*>(rows.raw()));
  auto part = std::make_shared<Allocation>(std::make_shared<PartOfSlab>(rows.storage(), at), rows.bytes());
  part->mark_written();
  part->freeze();
  part->set_ready(std::move(ready));
  return Tensor(rows.dtype(), rows.dims(), rows.dims().row_major(), 0, std::move(part));
}

Tensor Slab::whole(const DDim& dims) const { return Tensor(dtype_, dims, dims.row_major(), 0, storage_); }

}  // namespace millrace
