// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <millrace/runtime/layers/recurrent.h>
#include <support/random.h>

namespace millrace::testing {

/// A recurrent cell that a user writes as ops, of C input features and H units: its builder appends random parameters to the program that is being built.
struct UserCell {
  std::string name;
  int stages;    ///< of a generated kernel: one, and one more for each exchange between units inside a step
  int products;  ///< of a step
  bool narrow;   ///< products of bf16
  struct Built {
    layers::Cell cell;
    std::vector<layers::CellState> states;
  };
  std::function<Built(Random&, std::int64_t input, std::int64_t hidden)> build;
};

/// GRUs with the reset after and before the product, an LSTM spelled out, with peepholes, with layer norms and with a projection, a minimal gated
/// unit, a GRU and a minimal gated unit whose products are of bf16, an sLSTM, a vanilla cell with softmax over groups of units, and one whose state is a number beside the units.
const std::vector<UserCell>& user_cells();

}  // namespace millrace::testing
