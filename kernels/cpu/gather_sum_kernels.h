// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::cpu {

/// A sum of picked elements of a line, for lines of one length: to[j] = Σ_t from[places_t[j]] · weights_t[j]. Vectors of places that lie close together are picked
/// out of one vector of the line.
struct LineSums {
  LineSums(std::int64_t extent, std::int64_t count, std::vector<std::vector<std::int64_t>> places, std::vector<std::vector<float>> weights);

  struct Block {
    std::int64_t at = 0;     ///< the first of its results; blocks may overlap
    std::int64_t from = -1;  ///< the first element of the vector that they are picked from; −1: they lie too far apart
  };
  std::int64_t extent = 0, count = 0;
  std::vector<std::vector<std::int64_t>> places;  ///< of each term
  std::vector<std::vector<float>> weights;
  std::vector<Block> blocks;
  std::vector<std::int32_t> lanes;  ///< of each block, of each term: places in its vector
  std::vector<float> lane_weights;  ///< as many
};
/// The sums of `lines` lines that stand one behind the other.
void line_sums(const LineSums& sums, const float* from, float* to, std::int64_t lines);

/// to[i] = Σ_t from[t][i] · weights[t].
void weighted_sum(const float* const* from, const float* weights, std::int64_t terms, float* to, std::int64_t count);

}  // namespace millrace::cpu
