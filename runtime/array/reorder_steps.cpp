// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/reorder_steps.h>

#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/gather.h>
#include <millrace/runtime/array/pack.h>
#include <millrace/runtime/array/unpack.h>

namespace millrace {
namespace {

void check_orders(const TensorArray& array, const SequenceOrder& from, const SequenceOrder& to) {
  if (from.level() == to.level() && from.lod() == to.lod()) return;
  throw LoDError("reorder_steps: " + array.to_string() + ": expected orders of the same sequences, found " + from.to_string() + " and " +
                 to.to_string());
}

/// The first row of each step in the slab, and the number of rows, of an order with the longest sequences first.
std::vector<std::int64_t> step_offsets(const SequenceOrder& order) {
  std::vector<std::int64_t> offsets{0};
  offsets.reserve(static_cast<std::size_t>(order.steps()) + 1);
  const auto lengths = order.lengths();
  std::size_t live = lengths.size();
  for (std::int64_t step = 0; step < order.steps(); ++step) {
    while (live > 0 && lengths[live - 1] <= step) --live;
    offsets.push_back(offsets.back() + static_cast<std::int64_t>(live));
  }
  return offsets;
}

/// Both orders have the longest sequences first, one of them from the ends: rank k at step t is rank k at step length(k) − 1 − t.
std::vector<std::int64_t> turned_rows(const SequenceOrder& to, const std::vector<std::int64_t>& offsets) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(offsets.back()));
  const auto lengths = to.lengths();
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    const auto length = static_cast<std::size_t>(lengths[rank]);
    for (std::size_t step = 0; step < length; ++step)
      rows[static_cast<std::size_t>(offsets[step]) + rank] = offsets[length - 1 - step] + static_cast<std::int64_t>(rank);
  }
  return rows;
}

/// Bytes of a step from which on a slot of its own costs less than a copy.
constexpr std::int64_t worth_a_slot = 8 << 10;

/// Whether each step of one order is a step of the other, and large: all sequences are equally long.
bool steps_are_whole(const SequenceOrder& order, const Tensor& rows) {
  const std::int64_t steps = order.steps();
  return steps > 0 && order.live(0) == order.live(steps - 1) &&
         rows.elements() / steps * static_cast<std::int64_t>(size_of(rows.dtype())) >= worth_a_slot;
}

}  // namespace

task<TensorArray> reorder_steps(TensorArray array, SequenceOrder from, SequenceOrder to, StreamRef stream,
                                std::shared_ptr<MemoryResource> memory) {
  check_orders(array, from, to);
  if (from == to) co_return array;
  const auto filled = co_await array.once_filled();
  const bool rows = filled != nullptr && !filled->items && from.depth_below() == 0 && to.depth_below() == 0;
  if (rows && from.sorted() && to.sorted()) {
    const std::vector<std::int64_t> offsets = step_offsets(to);
    if (filled->offsets == offsets) {
      DDim dims = filled->whole.dims();
      if (memory == nullptr && stream.place().is_cpu() && filled->whole.is_contiguous() && filled->whole.ready().reached()) {
        dims[0] = DDim::unknown;
        const TensorArray made = TensorArray(SlotIndex(to.steps()), to).of(filled->whole.dtype(), dims);
        made.fill_picked({filled->whole, turned_rows(to, offsets), stream.memory()}, offsets);
        co_return made;
      }
      if (steps_are_whole(to, filled->whole)) {
        dims[0] = DDim::unknown;
        const TensorArray made = TensorArray(SlotIndex(to.steps()), to).of(filled->whole.dtype(), dims);
        for (std::int64_t step = 0; step < to.steps(); ++step) {
          const auto from_end = static_cast<std::size_t>(to.steps() - 1 - step);
          made.write(step, LoDTensor(filled->whole.rows(offsets[from_end], offsets[from_end + 1])));
        }
        co_return made;
      }
      const std::vector<std::int64_t> picked = turned_rows(to, offsets);
      Tensor slab(filled->whole.dtype(), dims, memory != nullptr ? memory : stream.memory());
      gather_rows(filled->whole, picked, slab, stream);
      dims[0] = DDim::unknown;
      const TensorArray made = TensorArray(SlotIndex(to.steps()), to).of(slab.dtype(), dims);
      made.fill(slab, offsets);
      co_return made;
    }
  }
  const int level = from.level();
  const LoDTensor packed = co_await pack(array, level, from, stream);
  auto unpacked = unpack(packed, level, to.sorted(), stream, to.reversed());
  co_return std::move(unpacked.first);
}

}  // namespace millrace
