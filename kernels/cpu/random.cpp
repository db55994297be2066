// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/random.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <type_traits>

#include <millrace/kernels/cpu/philox.h>

namespace millrace::cpu {
namespace {

std::uint32_t low(std::uint64_t word) { return static_cast<std::uint32_t>(word); }
std::uint32_t high(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); }

/// Two numbers in [0, 1) of 53 bits for each counter: pair p holds those of elements 2p and 2p + 1.
std::array<double, 2> units(std::uint64_t key, std::uint64_t pair) {
  const auto words = philox({low(pair), high(pair), 0, 0}, {low(key), high(key)});
  return {unit_of_words(words[0], words[1]), unit_of_words(words[2], words[3])};
}

/// An f32 has the first 24 bits: rounding would make 1 of the greatest.
template <class T>
std::array<T, 2> uniform(const std::array<double, 2>& u) {
  if constexpr (std::is_same_v<T, double>)
    return u;
  else
    return {static_cast<float>(std::floor(u[0] * 0x1p24) * 0x1p-24), static_cast<float>(std::floor(u[1] * 0x1p24) * 0x1p-24)};
}

/// 1 − u is in (0, 1], where a logarithm is finite.
template <class T>
std::array<T, 2> normal(const std::array<double, 2>& u) {
  const double radius = std::sqrt(-2 * std::log(1 - u[0])), angle = 2 * std::numbers::pi * u[1];
  return {static_cast<T>(radius * std::cos(angle)), static_cast<T>(radius * std::sin(angle))};
}

template <class T>
void fill(std::uint64_t key, Distribution distribution, T* out, std::int64_t elements, ThreadTeam& team) {
  team.parallel((elements + 1) / 2, 512, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t pair = begin; pair < end; ++pair) {
      const std::array<double, 2> u = units(key, static_cast<std::uint64_t>(pair));
      const std::array<T, 2> drawn = distribution == Distribution::uniform ? uniform<T>(u) : normal<T>(u);
      std::copy_n(drawn.begin(), std::min<std::int64_t>(2, elements - 2 * pair), out + 2 * pair);
    }
  });
}

}  // namespace

void random_numbers(std::uint64_t key, const RandomOptions& options, const Tensor& out, ThreadTeam& team) {
  const auto words = philox({low(options.number), high(options.number), low(key), high(key)}, {low(options.seed), high(options.seed)});
  const std::uint64_t of = std::uint64_t{words[1]} << 32 | words[0];
  if (out.dtype() == DType::f32)
    fill(of, options.distribution, static_cast<float*>(out.raw_mutable()), out.elements(), team);
  else
    fill(of, options.distribution, static_cast<double*>(out.raw_mutable()), out.elements(), team);
}

}  // namespace millrace::cpu
