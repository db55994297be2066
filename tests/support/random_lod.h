// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <millrace/tensor/lod.h>

#include "support/random.h"

namespace millrace::testing {

/// `depth` levels of up to 4 sequences outside, each of up to `longest` items; many of them are empty.
inline LoD random_lod(Random& random, int depth, std::int64_t longest = 4) {
  std::vector<LoD::Level> levels;
  std::int64_t sequences = random.between(0, 4);
  for (int level = 0; level < depth; ++level) {
    LoD::Level lengths;
    std::int64_t items = 0;
    for (std::int64_t i = 0; i < sequences; ++i) {
      lengths.push_back(random.between(0, 3) == 0 ? 0 : random.between(0, longest));
      items += lengths.back();
    }
    levels.push_back(lengths);
    sequences = items;
  }
  return LoD::from_lengths(levels);
}

}  // namespace millrace::testing
