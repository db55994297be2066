// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <millrace/kernels/row_plan.h>

namespace millrace {

/// What a description comes to: which ops run over a whole block and which a few rows at a time, and where scratch registers lie.
struct RowPlan::State {
  /// Ops [first, last): one product or cell over all rows of the block, or row-wise ops over `tile` rows at a time.
  struct Group {
    std::size_t first = 0;
    std::size_t last = 0;
    std::int64_t tile = 0;  ///< 0: the whole block
  };
  /// Elements from the start of the workspace's data. A local register holds the rows of a tile, else those of the block.
  struct Place {
    std::int64_t offset = 0;
    bool local = false;
  };
  RowDesc desc;
  std::vector<Group> groups;
  std::vector<Place> places;  ///< by register; of scratch alone
  std::int64_t block_rows = 0;
  std::int64_t room = 0;         ///< element offset of the room that logarithms of softmax take
  std::int64_t elements = 0;     ///< in all
  std::int64_t table_bytes = 0;  ///< in front of the elements: where each register is now
};

namespace cpu {

template <class T>
void run_rows(const RowPlan::State& plan, const RowWeights& weights, std::span<const RowView> inputs, std::span<const RowView> outputs,
              std::int64_t rows, void* workspace, SpinHelper* helper);

}  // namespace cpu
}  // namespace millrace
