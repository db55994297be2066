// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/last.h>

#include <algorithm>

#include <millrace/kernels/concat.h>
#include <millrace/kernels/gather.h>
#include <millrace/tensor/ragged.h>

namespace millrace {
namespace {

using Indices = std::vector<std::int64_t>;

void check_slots(const TensorArray& array, const std::vector<SlotValue>& values, const SequenceOrder& order) {
  if (std::cmp_not_equal(values.size(), order.steps()))
    throw ArgumentError("last_rows: expected " + std::to_string(order.steps()) + " slots, the steps of " + order.to_string() + ", found " +
                        array.to_string());
  for (std::size_t t = 0; t < values.size(); ++t) {
    const std::int64_t live = order.live(static_cast<std::int64_t>(t));
    if (values[t].rows() != live || !values[t].lod().empty())
      throw LoDError("last_rows: expected " + std::to_string(live) + " rows in slot " + std::to_string(t) +
                     ", one for each sequence that lives, found " + values[t].to_string());
  }
}

/// Checks the rows of slots that were filled at once.
void check_rows(const TensorArray& array, const Indices& offsets, const SequenceOrder& order) {
  bool fits = std::cmp_equal(offsets.size(), order.steps() + 1);
  for (std::size_t t = 0; fits && t + 1 < offsets.size(); ++t)
    fits = offsets[t + 1] - offsets[t] == order.live(static_cast<std::int64_t>(t));
  if (!fits)
    throw LoDError("last_rows: expected a row in each slot for each sequence that lives in " + order.to_string() + ", found " +
                   array.to_string());
}

}  // namespace

task<Tensor> last_rows(TensorArray array, SequenceOrder order, Tensor boot, StreamRef stream) {
  if (boot.rank() == 0 || boot.dim(0) != order.sequences())
    throw LoDError("last_rows: expected a boot of " + std::to_string(order.sequences()) + " rows, one for each sequence, found " +
                   boot.to_string());
  const auto filled = co_await array.once_filled();
  if (filled == nullptr || filled->items) {
    const std::vector<SlotValue> values = co_await array.values();
    check_slots(array, values, order);
  } else {
    check_rows(array, filled->offsets, order);
  }
  if (array.size() == 0) co_return boot;
  const LoDTensor joined = co_await array.concat(stream);
  const Indices sources = last_sources(order);
  if (std::find(sources.begin(), sources.end(), -1) == sources.end()) co_return gather_rows(joined.tensor(), sources, stream);
  // The rows that were written, then the boot: each sequence takes one of them.
  Indices written;
  Indices chosen;
  for (const std::int64_t source : sources)
    if (source >= 0) written.push_back(source);
  std::int64_t next = 0;
  for (std::size_t sequence = 0; sequence < sources.size(); ++sequence)
    chosen.push_back(sources[sequence] >= 0 ? next++ : static_cast<std::int64_t>(written.size() + sequence));
  std::vector<Tensor> parts;
  parts.push_back(gather_rows(joined.tensor(), written, stream));
  parts.push_back(boot);
  const Tensor both = concat(parts, 0, stream);
  co_return gather_rows(both, chosen, stream);
}

}  // namespace millrace
