// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <millrace/runtime/distributed/remote_array.h>

namespace millrace::testing {

/// The arrays that layer r of a stack reads and writes on rank r: rank 0 reads `first`, the others what the rank below writes. The last one's output stays.
struct LayerArrays {
  TensorArray in, out;

  LayerArrays(TensorArray first, Scope& scope, Communicator& communicator, std::int64_t run, StreamRef stream)
      : in(std::move(first)), out(named(communicator.rank())) {
    const int rank = communicator.rank();
    if (rank > 0) in = named(rank - 1).on(OnRank(scope, communicator, rank - 1, rank, stream, run));
    if (rank + 1 < communicator.world_size()) out = out.on(OnRank(scope, communicator, rank, rank + 1, stream, run));
  }

 private:
  TensorArray named(int rank) const { return TensorArray(in.size()).named("h" + std::to_string(rank)); }
};

}  // namespace millrace::testing
