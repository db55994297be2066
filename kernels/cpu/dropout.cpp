// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/dropout.h>

#include <algorithm>
#include <array>
#include <vector>

#include <millrace/kernels/cpu/index.h>
#include <millrace/kernels/cpu/philox.h>
#include <millrace/kernels/cpu/rows_along.h>
#include <millrace/kernels/cpu/sequences.h>

namespace millrace::cpu {
namespace {

std::uint32_t low(std::uint64_t word) { return static_cast<std::uint32_t>(word); }
std::uint32_t high(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); }

/// The key of an op in an epoch.
std::uint64_t key_of(const DropoutOptions& options, std::uint64_t epoch) {
  const auto words = philox({low(options.number), high(options.number), low(epoch), high(epoch)}, {low(options.seed), high(options.seed)});
  return std::uint64_t{words[1]} << 32 | words[0];
}

/// Four numbers in [0, 1) of 32 bits would not do for rates near 0 or 1: two of 53 bits for each counter.
struct Units {
  std::array<double, 2> at;
  Units(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint32_t pair) {
    const auto words = philox({low(sample), high(sample), step, pair}, {low(key), high(key)});
    at = {unit_of_words(words[0], words[1]), unit_of_words(words[2], words[3])};
  }
};

}  // namespace

void dropout(const Tensor& x, const Tensor& samples, const Tensor* steps, const Tensor* epoch, const DropoutOptions& options,
             const Tensor& out, ThreadTeam& team) {
  const std::int64_t rows = x.dim(0), width = rows == 0 ? 0 : x.elements() / rows;
  const std::vector<std::int64_t> sample = index_values(samples);
  const std::vector<std::int64_t> step = steps == nullptr ? std::vector<std::int64_t>{0} : index_values(*steps);
  const std::uint64_t key = key_of(options, epoch == nullptr ? 0 : static_cast<std::uint64_t>(index_values(*epoch).front()));
  visit_floats(x.dtype(), [&](auto element, auto wide) {
    using T = decltype(element);
    using Wide = decltype(wide);
    const T* from = static_cast<const T*>(x.raw());
    T* to = static_cast<T*>(out.raw_mutable());
    const auto kept = static_cast<Wide>(1 - options.rate);
    team.parallel(rows, std::max<std::int64_t>(1, 1024 / std::max<std::int64_t>(1, width)), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const auto of = static_cast<std::uint64_t>(sample[static_cast<std::size_t>(row)]);
        const auto at = static_cast<std::uint64_t>(step[step.size() == 1 ? 0 : static_cast<std::size_t>(row)]);
        for (std::int64_t first = 0; first < width; first += 2) {
          const Units units(key, of, low(at), static_cast<std::uint32_t>(first / 2));
          for (std::int64_t e = first; e < std::min(first + 2, width); ++e) {
            const bool stays = units.at[static_cast<std::size_t>(e - first)] >= options.rate;
            to[row * width + e] = convert_element<T>(stays ? convert_element<Wide>(from[row * width + e]) / kept : Wide{0});
          }
        }
      }
    });
  });
}

}  // namespace millrace::cpu
