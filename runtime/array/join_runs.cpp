// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/join_runs.h>

#include <span>
#include <string>
#include <vector>

#include <millrace/kernels/gather.h>

namespace millrace {
namespace {

[[noreturn]] void refuse(const TensorArray& array, const SequenceOrder& order, std::size_t slot, const SlotValue& found) {
  throw LoDError("join_runs: expected runs of the sequences of the " + order.to_string() + ", found in slot " + std::to_string(slot) +
                 " of " + array.to_string() + " " + found.to_string());
}

/// The rows of the whole that each slot holds, slot by slot.
std::vector<std::vector<std::int64_t>> rows_of_runs(const TensorArray& array, const SequenceOrder& order,
                                                    const std::vector<SlotValue>& slots) {
  if (slots.empty())
    throw ArgumentError("join_runs: expected a run for the sequences of the " + order.to_string() + ", found " + array.to_string());
  const auto ranks = static_cast<std::size_t>(order.sequences());
  const std::span<const std::int64_t> offsets = order.lod().offsets(0);
  const auto sequence_of = [&](std::size_t rank) { return static_cast<std::size_t>(order.permutation()[rank]); };
  std::vector<std::int64_t> next(ranks);  // by rank: where its next run begins; reversed, where it ends
  for (std::size_t rank = 0; rank < ranks; ++rank) next[rank] = offsets[sequence_of(rank) + (order.reversed() ? 1 : 0)];
  std::vector<std::vector<std::int64_t>> all;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    const SlotValue& run = slots[slot];
    if (run.lod().depth() != 1 || run.lod().sequences(0) != order.sequences()) refuse(array, order, slot, run);
    std::vector<std::int64_t>& rows = all.emplace_back();
    const std::vector<std::int64_t> lengths = run.lod().lengths(0);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t begin = order.reversed() ? next[rank] - lengths[rank] : next[rank];
      if (begin < offsets[sequence_of(rank)] || begin + lengths[rank] > offsets[sequence_of(rank) + 1]) refuse(array, order, slot, run);
      for (std::int64_t row = begin; row < begin + lengths[rank]; ++row) rows.push_back(row);
      next[rank] += order.reversed() ? -lengths[rank] : lengths[rank];
    }
  }
  for (std::size_t rank = 0; rank < ranks; ++rank)
    if (next[rank] != offsets[sequence_of(rank) + (order.reversed() ? 0 : 1)]) refuse(array, order, slots.size() - 1, slots.back());
  return all;
}

void expect_rows(const SequenceOrder& order) {
  if (order.level() != 0 || order.lod().depth() != 1)
    throw LoDError("join_runs: expected an order of outermost sequences of rows, found the " + order.to_string());
}

}  // namespace

task<LoDTensor> join_runs(TensorArray array, SequenceOrder order, StreamRef stream) {
  expect_rows(order);
  const std::vector<SlotValue> slots = co_await array.values();
  const std::vector<std::vector<std::int64_t>> targets = rows_of_runs(array, order, slots);
  DDim dims = slots.front().dims();
  dims[0] = order.lod().rows();
  Tensor rows(slots.front().dtype(), dims, stream.memory());
  for (std::size_t slot = 0; slot < slots.size(); ++slot) scatter_rows(slots[slot].tensor(), targets[slot], rows, stream);
  co_return LoDTensor(std::move(rows), order.lod());
}

task<std::vector<Tensor>> split_runs(Tensor joined, TensorArray array, SequenceOrder order, StreamRef stream) {
  expect_rows(order);
  if (joined.dims().rank() == 0 || joined.dim(0) != order.lod().rows())
    throw ShapeError("split_runs: expected the rows of the " + order.to_string() + ", found " + joined.to_string());
  const std::vector<SlotValue> slots = co_await array.values();
  std::vector<Tensor> made;
  for (const std::vector<std::int64_t>& rows : rows_of_runs(array, order, slots)) made.push_back(gather_rows(joined, rows, stream));
  co_return made;
}

}  // namespace millrace
