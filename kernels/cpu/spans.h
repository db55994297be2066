// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Splits rows × panels over a team: calls f(first_row, rows, first_panel, last_panel) on rectangles of at most `chunk`
/// rows that cover all. `work` is the number of multiply-adds of one row and one panel; a part for a thread is worth
/// some microseconds.
template <class F>
void each_span(ThreadTeam& team, std::int64_t rows, std::int64_t chunk, std::int64_t panels, std::int64_t work, F&& f) {
  constexpr std::int64_t worth = 1 << 16;
  const std::int64_t chunks = (rows + chunk - 1) / chunk;
  const std::int64_t grain = std::max<std::int64_t>(1, worth / std::max<std::int64_t>(1, work * std::min(rows, chunk)));
  team.parallel(chunks * panels, grain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t at = begin / panels;
      const std::int64_t first = begin % panels;
      const std::int64_t last = std::min(panels, first + (end - begin));
      f(at * chunk, std::min(chunk, rows - at * chunk), first, last);
      begin += last - first;
    }
  });
}

}  // namespace millrace::cpu
