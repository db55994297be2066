// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

namespace millrace {

/// The form in which the designs store the structure of variable-length input (document 004): `startPoses[k]` holds the offsets of level k,
/// outermost first, each level indexing the next and the last one the rows. `dim` is the number of levels; 0 means none.
/// Convert with `LoD::to_seq_pos` and `LoD::from_seq_pos`.
struct SeqPos {
  int dim{1};
  std::vector<std::shared_ptr<std::vector<int>>> startPoses;
};

}  // namespace millrace
