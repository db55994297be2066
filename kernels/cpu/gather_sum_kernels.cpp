// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/gather_sum_kernels.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/gather_sum_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/partial-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

std::int64_t LineLanes() { return static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>())); }

void LineSumsRun(const LineSums& sums, const float* from, float* to, std::int64_t lines) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d), terms = sums.places.size();
  const std::size_t loaded = std::min(lanes, static_cast<std::size_t>(sums.extent)),
                    stored = std::min(lanes, static_cast<std::size_t>(sums.count));
  // Block by block, so that places and weights stay in registers.
  for (std::size_t b = 0; b < sums.blocks.size(); ++b) {
    const LineSums::Block& block = sums.blocks[b];
    const float *x = from, *const weights = sums.lane_weights.data() + b * terms * lanes;
    const std::int32_t* const places = sums.lanes.data() + b * terms * lanes;
    float* y = to + block.at;
    if (block.from < 0) {
      for (std::int64_t line = 0; line < lines; ++line, x += sums.extent, y += sums.count)
        for (std::size_t j = 0; j < stored; ++j) {
          const std::size_t at = static_cast<std::size_t>(block.at) + j;
          float sum = x[sums.places[0][at]] * sums.weights[0][at];
          for (std::size_t t = 1; t < terms; ++t) sum += x[sums.places[t][at]] * sums.weights[t][at];
          y[j] = sum;
        }
      continue;
    }
    x += block.from;
    const auto each_line = [&](auto count) HWY_ATTR {
      constexpr std::size_t known = decltype(count)::value;  // 0: any number of terms
      const std::size_t all = known == 0 ? terms : known;
      const auto first = hn::SetTableIndices(d, places);
      const auto first_weights = hn::LoadU(d, weights);
      for (std::int64_t line = 0; line < lines; ++line, x += sums.extent, y += sums.count) {
        const auto some = LoadSome(d, x, loaded);
        auto sum = hn::Mul(hn::TableLookupLanes(some, first), first_weights);
        for (std::size_t t = 1; t < all; ++t)
          sum = hn::Add(sum,
                        hn::Mul(hn::TableLookupLanes(some, hn::SetTableIndices(d, places + t * lanes)), hn::LoadU(d, weights + t * lanes)));
        StoreSome(d, sum, y, stored);
      }
    };
    if (terms == 2)
      each_line(std::integral_constant<std::size_t, 2>{});
    else
      each_line(std::integral_constant<std::size_t, 0>{});
  }
}

void WeightedSumRun(const float* const* from, const float* weights, std::int64_t terms, float* to, std::int64_t count) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto vector = [&](std::int64_t at, std::size_t some) HWY_ATTR {
    auto sum = hn::Mul(LoadSome(d, from[0] + at, some), hn::Set(d, weights[0]));
    for (std::int64_t t = 1; t < terms; ++t) sum = hn::Add(sum, hn::Mul(LoadSome(d, from[t] + at, some), hn::Set(d, weights[t])));
    StoreSome(d, sum, to + at, some);
  };
  if (count < lanes) return vector(0, static_cast<std::size_t>(count));
  if (terms == 2) {
    const auto a = hn::Set(d, weights[0]), b = hn::Set(d, weights[1]);
    const float *const x = from[0], *const y = from[1];
    const auto two = [&](std::int64_t at)
                         HWY_ATTR { hn::StoreU(hn::Add(hn::Mul(hn::LoadU(d, x + at), a), hn::Mul(hn::LoadU(d, y + at), b)), d, to + at); };
    for (std::int64_t at = 0; at + lanes <= count; at += lanes) two(at);
    if (count % lanes != 0) two(count - lanes);
    return;
  }
  for (std::int64_t at = 0; at + lanes <= count; at += lanes) vector(at, hn::Lanes(d));
  if (count % lanes != 0) vector(count - lanes, hn::Lanes(d));  // the elements of both have the same sums
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(LineLanes);
HWY_EXPORT(LineSumsRun);
HWY_EXPORT(WeightedSumRun);

LineSums::LineSums(std::int64_t extent, std::int64_t count, std::vector<std::vector<std::int64_t>> places,
                   std::vector<std::vector<float>> weights)
    : extent(extent), count(count), places(std::move(places)), weights(std::move(weights)) {
  const std::int64_t vector = HWY_DYNAMIC_DISPATCH(LineLanes)();
  for (std::int64_t begin = 0; begin < count; begin += vector) {
    Block block{std::max<std::int64_t>(0, std::min(begin, count - vector)), 0};
    const std::int64_t some = std::min(vector, count);
    std::int64_t low = extent, high = 0;
    for (const std::vector<std::int64_t>& term : this->places) {
      const auto first = term.begin() + block.at;
      const auto [least, most] = std::minmax_element(first, first + some);
      low = std::min(low, *least);
      high = std::max(high, *most);
    }
    block.from = std::max<std::int64_t>(0, std::min(low, extent - vector));
    const bool close = high - block.from < vector;
    for (std::size_t t = 0; t < this->places.size(); ++t)
      for (std::int64_t lane = 0; lane < vector; ++lane) {
        const auto at = static_cast<std::size_t>(block.at + std::min(lane, some - 1));
        lanes.push_back(close ? static_cast<std::int32_t>(this->places[t][at] - block.from) : 0);
        lane_weights.push_back(this->weights[t][at]);
      }
    if (!close) block.from = -1;
    blocks.push_back(block);
  }
}
void line_sums(const LineSums& sums, const float* from, float* to, std::int64_t lines) {
  HWY_DYNAMIC_DISPATCH(LineSumsRun)(sums, from, to, lines);
}
void weighted_sum(const float* const* from, const float* weights, std::int64_t terms, float* to, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(WeightedSumRun)(from, weights, terms, to, count);
}

}  // namespace millrace::cpu
#endif
