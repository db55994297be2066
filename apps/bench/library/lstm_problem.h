// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/tensor.h>

namespace millrace::bench {

/// Normally distributed numbers of this deviation, of a seed.
Tensor random_tensor(const DDim& dims, std::uint64_t seed, float deviation = 1);

/// The problem of all LSTMs of a row: one layer of H units over rows of H features, f32, from states of zeros.
struct LstmProblem {
  std::int64_t hidden = 0;
  std::vector<std::int64_t> lengths;
  Tensor x;     ///< [Σ lengths, H], sequence after sequence
  Tensor w;     ///< [H, 4H], gates i f g o
  Tensor r;     ///< [H, 4H], gates i f g o
  Tensor bias;  ///< [4H]
  Tensor h;     ///< [sequences, H]: where one step begins
  Tensor c;     ///< [sequences, H]

  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t rows() const { return x.dim(0); }
};
LstmProblem make_problem(std::int64_t hidden, std::vector<std::int64_t> lengths);

/// Lengths of `count` sequences: log-normal of this σ around `middle`, at least 1.
std::vector<std::int64_t> log_normal_lengths(std::int64_t count, double middle, double sigma);

/// The sequences `chosen` as [T, N, H], time first, with zeros behind their ends; T = 0: the longest of them.
Tensor padded(const LstmProblem& problem, const std::vector<std::size_t>& chosen, std::int64_t steps = 0);
/// The inverse: y [T, N, H] of the sequences `chosen` goes to their rows of `to` [Σ lengths, H].
void unpadded(const LstmProblem& problem, const std::vector<std::size_t>& chosen, const Tensor& y, Tensor& to);

/// The greatest difference of two tensors of f32 with as many elements.
double difference(const Tensor& a, const Tensor& b);

}  // namespace millrace::bench
