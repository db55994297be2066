// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/lod.h>

namespace millrace::training {

/// The numbers 0 … count − 1 in an order that is a function of the arguments alone: by a random number for each, keyed by (seed, epoch, number).
std::vector<std::int64_t> permutation(std::int64_t count, std::uint64_t seed, std::uint64_t epoch);

/// The size of a batch.
struct BatchSize {
  std::int64_t sequences = 32;  ///< at most; 0: no bound
  std::int64_t rows = 0;        ///< at most, but for a batch of one sequence that has more; 0: no bound
};

/// The outermost sequences of `lod` by number, dealt to batches in the order `order`: a batch ends where the next sequence would exceed its
/// size. Every sequence is in one batch, empty ones too; the last may be smaller. ArgumentError for a size below 0 or without any bound,
/// IndexError for a number that is none.
std::vector<std::vector<std::int64_t>> deal_batches(const LoD& lod, const std::vector<std::int64_t>& order, const BatchSize& size);

}  // namespace millrace::training
