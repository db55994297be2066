// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <support/random.h>

namespace millrace::testing {

/// `all` cut anywhere: mostly small pieces, sometimes large ones, now and then an empty one.
template <class T>
std::vector<std::span<const T>> cut_anywhere(std::span<const T> all, Random& random) {
  std::vector<std::span<const T>> pieces;
  while (!all.empty()) {
    const std::int64_t most = random.between(0, 3) == 0 ? static_cast<std::int64_t>(all.size()) : 9;
    const auto size = std::min(all.size(), static_cast<std::size_t>(random.between(0, most)));
    pieces.push_back(all.first(size));
    all = all.subspan(size);
  }
  return pieces;
}

inline std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span<const char>(text)); }

}  // namespace millrace::testing
