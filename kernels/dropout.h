// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

struct DropoutOptions {
  double rate = 0.5;         ///< of elements that become 0, in [0, 1]
  std::uint64_t seed = 0;    ///< of the training run
  std::uint64_t number = 0;  ///< of this op among those of the program
};

/// x [rows, …], floats: each element becomes 0 with probability `rate`, else x / (1 − rate), rounded once (Srivastava et al., 2014).
///
/// Random numbers are counter-based (Philox 4x32-10, Salmon et al. 2011), keyed by (seed, number, epoch) and counted by (sample, step, element
/// of the row): the other rows of the batch, and the thread that computes a row, do not matter. Element e of a row stays where
/// u ≥ rate, u in [0, 1) of 53 bits. `samples` [rows] or [rows, 1] names the sequence of each row; `steps`, likewise or one element for all
/// rows, its place in it; `epoch` one element. All are i64 or i32; null: 0. With the same step for all rows of a sequence the mask is the same
/// for all (variational dropout, Gal and Ghahramani 2016). The same call on a gradient gives the gradient. ShapeError, DTypeError,
/// ArgumentError; on the CPU alone: UnsupportedError elsewhere.
Tensor dropout(const Tensor& x, const Tensor& samples, const Tensor* steps, const Tensor* epoch, const DropoutOptions& options,
               StreamRef stream);

}  // namespace millrace
