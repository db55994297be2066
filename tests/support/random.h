// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

#include <millrace/tensor/sanitized.h>

namespace millrace::testing {

/// The seeds that a property test goes through: 1 … count, or only MILLRACE_SEED where that is set. Print each with `INFO("seed ", seed)`. Under a
/// sanitizer, which looks for paths and not for numbers, fewer: half of a few, a fifth of some, a twelfth of many.
inline std::vector<std::uint64_t> seeds(std::uint64_t count) {
  if (const char* one = std::getenv("MILLRACE_SEED")) return {std::strtoull(one, nullptr, 10)};
  constexpr std::uint64_t some = 9, many = 60;
  if (sanitized) count = count >= many ? count / 12 : count >= some ? count / 5 : (count + 1) / 2;
  std::vector<std::uint64_t> all;
  for (std::uint64_t seed = 1; seed <= count; ++seed) all.push_back(seed);
  return all;
}

/// Numbers that depend on the seed alone, on every machine (splitmix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
  }
  /// From `low` to `high`, both included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    const std::uint64_t count = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low) + 1;
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + (count == 0 ? next() : next() % count));
  }
  bool coin() { return (next() & 1u) != 0; }
  /// In [-1, 1).
  float real() { return static_cast<float>(static_cast<std::int64_t>(next() >> 40) - (1 << 23)) / static_cast<float>(1 << 23); }

 private:
  std::uint64_t state_;
};

}  // namespace millrace::testing
