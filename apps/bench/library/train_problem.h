// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/program/program.h>
#include <millrace/tensor/tensor.h>

namespace millrace::bench {

/// One batch of a classifier of sequences: an LSTM, its last state through a linear layer, mean cross entropy. f32.
struct TrainProblem {
  std::vector<std::int64_t> lengths;
  Tensor x;       ///< [Σ lengths, C], sequence after sequence
  Tensor labels;  ///< i64 [sequences], 0 ≤ label < K
  Tensor w;       ///< [C, 4H], gates i f g o
  Tensor r;       ///< [H, 4H]
  Tensor bias;    ///< [4H]
  Tensor out;     ///< [H, K]
  Tensor shift;   ///< [K]

  std::int64_t features() const { return w.dim(0); }
  std::int64_t hidden() const { return r.dim(0); }
  std::int64_t classes() const { return out.dim(1); }
};
TrainProblem make_train_problem(std::int64_t features, std::int64_t hidden, std::int64_t classes, std::vector<std::int64_t> lengths);

/// 27 sequences (a batch of japanese_vowels_lstm.toml) of 7 to 26 rows, the lengths of JapaneseVowels' training set, of a seed.
std::vector<std::int64_t> vowel_lengths();

/// The classifier with the built-in layer (`layer_norm` false), or with a cell that a user wrote of ops: an LSTM that normalises both
/// products and the cell state. Inputs `x` and `target`, output `loss`; weights `lstm_0_input`, `lstm_0_recurrent`, ….
Program classifier(const TrainProblem& problem, bool layer_norm);
Feeds feeds_of(const TrainProblem& problem);

/// `forward`, whose first output is y, with its weights as inputs (`training::fed_name`), an input `dy` of this type, the gradient of y, and as outputs
/// `d_NAME` the gradients of all its other inputs.
Program with_backward(const Program& forward, const VarType& dy);

}  // namespace millrace::bench
