// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/streaming/live/server_counts.h>

namespace millrace {

/// One metric, as it is now, with its samples by labels.
struct Metric {
  enum class Kind : std::uint8_t { counter, gauge, histogram };
  struct Sample {
    std::vector<std::pair<std::string, std::string>> labels;
    double value = 0;                         ///< of a counter or a gauge
    std::optional<Histogram> histogram = {};  ///< of a histogram
  };

  std::string name;
  std::string help;
  Kind kind = Kind::gauge;
  std::vector<Sample> samples{};
};

/// The text format 0.0.4 of Prometheus, by prometheus-cpp; UnsupportedError in a build without it.
std::string metrics_text(const std::vector<Metric>& metrics);
/// The Content-Type of that text.
inline constexpr const char* metrics_content_type = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace millrace
