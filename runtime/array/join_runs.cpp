// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/join_runs.h>

#include <string>
#include <vector>

#include <millrace/kernels/gather.h>

namespace millrace {
namespace {

[[noreturn]] void refuse(const TensorArray& array, const SequenceOrder& order, std::size_t slot, const SlotValue& found) {
  throw LoDError("join_runs: expected runs of the sequences of the " + order.to_string() + ", found in slot " + std::to_string(slot) +
                 " of " + array.to_string() + " " + found.to_string());
}

}  // namespace

task<LoDTensor> join_runs(TensorArray array, SequenceOrder order, StreamRef stream) {
  if (order.level() != 0 || order.lod().depth() != 1)
    throw LoDError("join_runs: expected an order of outermost sequences of rows, found the " + order.to_string());
  const std::vector<SlotValue> slots = co_await array.values();
  if (slots.empty())
    throw ArgumentError("join_runs: expected a run for the sequences of the " + order.to_string() + ", found " + array.to_string());
  const auto ranks = static_cast<std::size_t>(order.sequences());
  std::vector<std::int64_t> next(ranks);  // by rank: where its next run begins; reversed, where it ends
  for (std::size_t rank = 0; rank < ranks; ++rank)
    next[rank] = order.lod().offsets(0)[static_cast<std::size_t>(order.permutation()[rank]) + (order.reversed() ? 1 : 0)];
  DDim dims = slots.front().dims();
  dims[0] = order.lod().rows();
  Tensor rows(slots.front().dtype(), dims, stream.memory());
  std::vector<std::int64_t> targets;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    const SlotValue& run = slots[slot];
    if (run.lod().depth() != 1 || run.lod().sequences(0) != order.sequences()) refuse(array, order, slot, run);
    targets.clear();
    const std::vector<std::int64_t> lengths = run.lod().lengths(0);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto sequence = static_cast<std::size_t>(order.permutation()[rank]);
      const std::int64_t begin = order.reversed() ? next[rank] - lengths[rank] : next[rank];
      if (begin < order.lod().offsets(0)[sequence] || begin + lengths[rank] > order.lod().offsets(0)[sequence + 1])
        refuse(array, order, slot, run);
      for (std::int64_t row = begin; row < begin + lengths[rank]; ++row) targets.push_back(row);
      next[rank] += order.reversed() ? -lengths[rank] : lengths[rank];
    }
    scatter_rows(run.tensor(), targets, rows, stream);
  }
  for (std::size_t rank = 0; rank < ranks; ++rank)
    if (next[rank] != order.lod().offsets(0)[static_cast<std::size_t>(order.permutation()[rank]) + (order.reversed() ? 0 : 1)])
      refuse(array, order, slots.size() - 1, slots.back());
  co_return LoDTensor(std::move(rows), order.lod());
}

}  // namespace millrace
