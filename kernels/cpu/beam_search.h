// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/kernels/beam_search.h>

namespace millrace::cpu {

struct BeamInput {
  LoD lod;
  std::vector<std::int64_t> ids;
  std::vector<double> scores;
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> tokens;  ///< of the candidates; empty: the columns
};
struct BeamChoice {
  LoD lod;
  std::vector<std::int64_t> ids;
  std::vector<double> scores;
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> parents;
  bool live = false;
};
BeamChoice choose(const BeamInput& before, const Tensor& candidates, const BeamOptions& options);

struct BeamTrace {
  LoD::Level hypotheses;  ///< of each source
  LoD::Level lengths;     ///< of each hypothesis
  std::vector<std::int64_t> tokens;
  std::vector<double> scores;
  std::vector<double> totals;
};
BeamTrace trace_back(const LoD& lod, const std::vector<std::int64_t>& ids, const std::vector<double>& scores, std::int64_t steps,
                     const BeamOptions& options);

}  // namespace millrace::cpu
