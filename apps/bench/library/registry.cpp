// SPDX-License-Identifier: Apache-2.0
#include <bench/library/registry.h>

#include <fmt/format.h>

namespace millrace::bench {

void emit_pair(Context& context, Row row, const Timer& ours, const Timer& peer, const std::string& why_not) {
  const auto [our_time, peer_time] = by_iterations(ours, peer, context.effort);
  row.ours = our_time;
  if (peer) row.peer = peer_time;
  if (!peer && !why_not.empty()) row.note += (row.note.empty() ? "" : "; ") + why_not;
  context.emit(std::move(row));
}

void check_peer(double difference, Timer& peer, std::string& note, double most) {
  if (!peer || difference <= most) return;
  peer = nullptr;
  note = fmt::format("not measured: the peer's result is {:.3g} from ours", difference);
}

std::string threads_text(int threads) { return threads == 1 ? "1 thread" : std::to_string(threads) + " threads"; }

}  // namespace millrace::bench
