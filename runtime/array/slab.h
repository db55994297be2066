// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <millrace/tensor/memory.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The memory of all slots of an array, one behind the other: rows and step offsets. Each slot is a view with a storage record of its own,
/// so that it has its own readiness, and can be frozen, while its neighbours are still to be written.
class Slab {
 public:
  /// Slot t is the elements [offsets[t], offsets[t + 1]).
  Slab(DType dtype, std::vector<std::int64_t> offsets, std::shared_ptr<MemoryResource> memory);

  DType dtype() const noexcept { return dtype_; }
  std::int64_t slots() const noexcept { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  std::int64_t elements(std::int64_t slot) const;
  /// The view of slot `slot` as a tensor of `dims`; asked twice, the views share the record. ShapeError when the sizes differ.
  Tensor slot(std::int64_t slot, const DDim& dims);
  /// True when `tensor` is the memory of slot `slot`.
  bool holds(std::int64_t slot, const Tensor& tensor) const;
  /// All slots as one tensor of `dims`. It knows nothing of the slots' readiness: enqueue behind them and `set_ready`.
  Tensor whole(const DDim& dims) const;

 private:
  DType dtype_;
  std::vector<std::int64_t> offsets_;
  std::shared_ptr<Allocation> storage_;
  std::vector<std::weak_ptr<Allocation>> slots_;
};

/// The elements of contiguous rows with a storage record of their own, frozen and there at `ready`. Keeps what they are a part of alive.
Tensor part_of(const Tensor& rows, Point ready);

}  // namespace millrace
