// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/pack.h>

#include <algorithm>
#include <optional>

#include <millrace/kernels/gather.h>
#include <millrace/tensor/ragged.h>

namespace millrace {
namespace {

LoDTensor pack_values(const std::vector<SlotValue>& values, const LoDTensor& joined, const SequenceOrder& order, StreamRef stream) {
  std::vector<std::int64_t> rows;
  std::vector<LoD> lods;
  for (const SlotValue& value : values) {
    rows.push_back(value.rows());
    if (!value.lod().empty()) lods.push_back(value.lod());
  }
  const PackPlan plan = make_pack_plan(order, rows, lods);
  return LoDTensor(plan.identity ? joined.tensor() : gather_rows(joined.tensor(), plan.sources, stream), plan.lod);
}

/// An LoD of `levels` levels over no rows: the outer levels of `lod`, and empty levels below them.
LoD over_nothing(const LoD& lod, int levels) {
  LoD made = lod.levels(0, std::min(lod.depth(), levels));
  while (made.depth() < levels) made = made.append(LoD::Level{});
  return made;
}

LoDTensor pack_filled(const detail::FilledSlots& slots, const SequenceOrder& order, StreamRef stream) {
  std::vector<std::int64_t> rows;
  for (std::size_t t = 0; t + 1 < slots.offsets.size(); ++t) rows.push_back(slots.offsets[t + 1] - slots.offsets[t]);
  const PackPlan plan = make_pack_plan(order, rows, {});
  return LoDTensor(plan.identity ? slots.whole : gather_rows(slots.whole, plan.sources, stream), plan.lod);
}

}  // namespace

task<LoDTensor> pack(TensorArray array, int level, SequenceOrder order, StreamRef stream) {
  if (level != order.level())
    throw LoDError("pack: expected level " + std::to_string(order.level()) + " of " + order.to_string() + ", found level " +
                   std::to_string(level));
  const auto filled = co_await array.once_filled();
  if (filled != nullptr && !filled->items && std::cmp_equal(array.size(), order.steps())) co_return pack_filled(*filled, order, stream);
  std::vector<SlotValue> values = co_await array.values();
  if (static_cast<std::int64_t>(values.size()) != order.steps())
    throw ArgumentError("pack: expected " + std::to_string(order.steps()) + " slots, the steps of " + order.to_string() + ", found " +
                        array.to_string());
  const LoDTensor joined = co_await array.concat(stream);
  const std::optional<int> below = values.empty() ? array.slot_levels() : std::nullopt;
  if (below) co_return LoDTensor(joined.tensor(), over_nothing(order.lod(), level + 1 + *below));
  co_return pack_values(values, joined, order, stream);
}

}  // namespace millrace
