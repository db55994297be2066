// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <numeric>

namespace emulated {

/// A number that differs from call to call, the same ones in each process whose threads ask in the same order.
inline std::uint64_t any_number() {
  static std::atomic<std::uint64_t> asked{0};
  std::uint64_t x = ++asked * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9u;
  return x ^ x >> 32;
}

/// By how much warps are late behind a meeting, each eighth time; 0: never.
inline std::atomic<int> lateness{0};

/// f(i) once for each i of [0, count), in an order of each call's own: what runs side by side on a device must not rely on any.
template <class F>
void in_any_order(std::int64_t count, const F& f) {
  if (count <= 0) return;
  const std::uint64_t drawn = any_number();
  std::int64_t step = 1 + static_cast<std::int64_t>(drawn >> 33) % count;
  while (std::gcd(step, count) != 1) ++step;
  std::int64_t at = static_cast<std::int64_t>(drawn & 0x7FFFFFFF) % count;
  for (std::int64_t i = 0; i < count; ++i) {
    f(at);
    at = (at + step) % count;
  }
}

}  // namespace emulated
