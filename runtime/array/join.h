// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <millrace/runtime/array/slab.h>
#include <millrace/runtime/array/slot_value.h>
#include <millrace/tensor/stream.h>

namespace millrace::detail {

/// The elements of `parts`, which have one dtype, one behind the other as a tensor of `dims`, ready in the order of `stream`. Parts that
/// already lie so in one storage, or fill `slab` slot by slot, are not copied: the result is a read-only view.
Tensor join(const std::vector<Tensor>& parts, DType dtype, const DDim& dims, const std::shared_ptr<Slab>& slab, StreamRef stream);

/// `values`, all of one shape, with a new axis 0. `empty` says dtype and extents where there are none.
Tensor stack_values(const std::vector<SlotValue>& values, const std::shared_ptr<Slab>& slab, const Tensor& empty, StreamRef stream);

/// The rows of `values`, and their sequences when all have the same number of levels, at least one. Of no values: rows of `levels` levels.
LoDTensor concat_values(const std::vector<SlotValue>& values, const std::shared_ptr<Slab>& slab, const Tensor& empty, int levels,
                        StreamRef stream);

}  // namespace millrace::detail
