// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include <millrace/tensor/host_device.h>

namespace millrace::cpu {

/// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): four random words for each counter
/// and key.
MILLRACE_HD inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xd2511f53} * counter[0], b = std::uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9e3779b9u, key[1] + 0xbb67ae85u};
  }
  return counter;
}

/// A number in [0, 1): the first 53 bits of two words.
MILLRACE_HD inline double unit_of_words(std::uint32_t high, std::uint32_t low) {
  return static_cast<double>((std::uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}

/// Such a number for two numbers that count.
MILLRACE_HD inline double philox_unit(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  const auto low = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
  const auto words = philox({low(a), low(a >> 32), low(b), low(b >> 32)}, {low(seed), low(seed >> 32)});
  return unit_of_words(words[0], words[1]);
}

}  // namespace millrace::cpu
