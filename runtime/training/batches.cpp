// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/batches.h>

#include <algorithm>
#include <string>
#include <utility>

#include <millrace/kernels/cpu/philox.h>

namespace millrace::training {

std::vector<std::int64_t> permutation(std::int64_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::pair<double, std::int64_t>> keys;
  for (std::int64_t i = 0; i < count; ++i) keys.emplace_back(cpu::philox_unit(seed, epoch, static_cast<std::uint64_t>(i)), i);
  std::sort(keys.begin(), keys.end());
  std::vector<std::int64_t> order;
  for (const auto& [key, number] : keys) order.push_back(number);
  return order;
}

std::vector<std::vector<std::int64_t>> deal_batches(const LoD& lod, const std::vector<std::int64_t>& order, const BatchSize& size) {
  if (size.sequences < 0 || size.rows < 0 || (size.sequences == 0 && size.rows == 0))
    throw ArgumentError("batches: expected a number of sequences or of rows above 0, found " + std::to_string(size.sequences) +
                        " sequences and " + std::to_string(size.rows) + " rows");
  std::vector<std::vector<std::int64_t>> batches;
  std::int64_t rows = 0;
  for (const std::int64_t sequence : order) {
    const auto [begin, end] = lod.row_range(0, sequence, sequence + 1);
    const bool full = !batches.empty() && ((size.sequences > 0 && std::cmp_equal(batches.back().size(), size.sequences)) ||
                                           (size.rows > 0 && rows + (end - begin) > size.rows));
    if (batches.empty() || full) {
      batches.emplace_back();
      rows = 0;
    }
    batches.back().push_back(sequence);
    rows += end - begin;
  }
  return batches;
}

}  // namespace millrace::training
