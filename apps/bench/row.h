// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace::bench {

/// One line of the speed table: ours and a peer on one shape, in seconds; ratio = peer / ours, so that more is better.
struct Row {
  std::string id;
  std::string shape;
  std::string peer_name;
  double goal = 1;  ///< the least ratio
  std::optional<double> ours;
  std::optional<double> peer;
  std::string note;  ///< why a figure is missing

  std::optional<double> ratio() const {
    if (!ours || !peer) return std::nullopt;
    return *peer / *ours;
  }
};

/// Medians of `ours` and `peer` in seconds a call, measured by turns: ours, peer, ours, … Each measurement lasts about
/// `seconds`.
template <class Ours, class Peer>
void measure(Row& row, Ours ours, Peer peer, int turns = 9, double seconds = 0.02) {
  const auto one = [seconds](auto& call) {
    using Clock = std::chrono::steady_clock;
    std::int64_t calls = 0;
    const auto start = Clock::now();
    double passed = 0;
    for (; passed < seconds; passed = std::chrono::duration<double>(Clock::now() - start).count(), ++calls) call();
    return passed / static_cast<double>(calls);
  };
  const auto median = [](std::vector<double>& all) {
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
    return all[all.size() / 2];
  };
  one(ours);
  one(peer);
  std::vector<double> of_ours, of_peer;
  for (int turn = 0; turn < turns; ++turn) {
    of_ours.push_back(one(ours));
    of_peer.push_back(one(peer));
  }
  of_ours.push_back(one(ours));
  row.ours = median(of_ours);
  row.peer = median(of_peer);
}

}  // namespace millrace::bench
