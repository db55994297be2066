// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/server_counts.h>

#include <algorithm>

#include <millrace/tensor/error.h>

namespace millrace {

Histogram::Histogram(std::initializer_list<double> bounds) : size_(bounds.size()) {
  if (size_ > most_bounds || !std::is_sorted(bounds.begin(), bounds.end()))
    throw ArgumentError("histogram: expected at most " + std::to_string(most_bounds) + " ascending bounds, found " + std::to_string(size_));
  std::copy(bounds.begin(), bounds.end(), bounds_.begin());
}

void Histogram::observe(double value) noexcept {
  const auto end = bounds_.begin() + static_cast<std::ptrdiff_t>(size_);
  ++counts_[static_cast<std::size_t>(std::lower_bound(bounds_.begin(), end, value) - bounds_.begin())];
  ++count_;
  sum_ += value;
}

std::size_t OutcomeCounts::index_of(std::string_view outcome) noexcept {
  const auto code = error_code_named(outcome);
  if (code && static_cast<std::size_t>(*code) < codes) return static_cast<std::size_t>(*code);
  return outcome == "ended" ? codes : codes + 1;
}

std::string_view OutcomeCounts::name(std::size_t index) {
  if (index < codes) return name_of(static_cast<ErrorCode>(index));
  return index == codes ? "ended" : "gone";
}

}  // namespace millrace
