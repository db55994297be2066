// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <millrace/kernels/cpu/rows_along.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Calls f(n, begin, end) for each sequence n of the rows [begin, end), split over the team when there is enough to do.
template <class F>
void each_segment(const std::vector<std::int64_t>& offsets, std::int64_t row_elements, ThreadTeam& team, F&& f) {
  const auto sequences = static_cast<std::int64_t>(offsets.size()) - 1;
  const std::int64_t elements = std::max<std::int64_t>(1, offsets.back() * row_elements);
  const std::int64_t grain = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(static_cast<double>(grain_heavy) * static_cast<double>(sequences) / static_cast<double>(elements)));
  team.parallel(sequences, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t n = first; n < last; ++n) f(n, offsets[static_cast<std::size_t>(n)], offsets[static_cast<std::size_t>(n) + 1]);
  });
}

/// Calls f(T{}, Wide{}) for floats and the type they are computed in, and for i64 and i32, which wrap in u64.
template <class F>
void visit_numbers(DType dtype, F&& f) {
  if (dtype == DType::i64) return f(std::int64_t{}, std::uint64_t{});
  if (dtype == DType::i32) return f(std::int32_t{}, std::uint64_t{});
  visit_floats(dtype, std::forward<F>(f));
}

}  // namespace millrace::cpu
