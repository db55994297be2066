// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace millrace::bench {

/// The unit of `ours`, `peer` and `floor` of a row. Of seconds and bytes less is better, of streams (and rows that were answered) more.
enum class Unit : std::uint8_t { seconds, bytes, streams };

/// One line of the speed table (docs/performance.md): ours beside one peer, on one shape, for one clause of one goal.
struct Row {
  std::string id;
  std::string shape;
  std::string peer_name;       ///< "goal" where the peer is a fixed limit
  std::optional<double> goal;  ///< the least ratio; none where a row only shows what another is made of
  Unit unit = Unit::seconds;
  std::optional<double> ours = {};
  std::optional<double> peer = {};
  std::optional<double> floor = {};  ///< the time below which this machine cannot go, where it is known
  std::string note = {};             ///< why a figure is missing, or what it was measured with
  /// Where the row stands in the plot: nowhere when `panel` is empty.
  std::string panel = {};
  double x = 0;

  /// So that more is better. None when a figure is missing.
  std::optional<double> ratio() const {
    if (!ours || !peer || *ours <= 0 || *peer <= 0) return std::nullopt;
    return unit == Unit::streams ? *ours / *peer : *peer / *ours;
  }
  /// 1: as good as the machine can do.
  std::optional<double> fraction_of_floor() const {
    if (!ours || !floor || *ours <= 0) return std::nullopt;
    return unit == Unit::streams ? *ours / *floor : *floor / *ours;
  }
};

}  // namespace millrace::bench
