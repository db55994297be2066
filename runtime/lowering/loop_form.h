// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// A while op as a recurrence inside its program: which rows a turn takes from which arrays, what it carries, what it writes, and when the
/// loop ends. What is array-carried in the program (`states.read(step − 1, boot)` … `states.write(step, state)`) is carried here; a read
/// further back is a window of that many states.
///
/// `step` is one turn for all its sequences: a straight-line program whose inputs are, in order, the step inputs, the states and the shared
/// values, and whose outputs are what the turn writes, then the next values of those states that change. Rows lie along axis 0, of unknown
/// extent.
struct LoopForm {
  /// A number that grows by one each turn: the value of carried var `carried` plus `offset`.
  struct Index {
    std::size_t carried = 0;
    std::int64_t offset = 0;
  };
  /// A slot that each turn reads, and nobody writes while the loop runs.
  struct StepInput {
    VarId array = no_var;
    Index index;
  };
  /// A slot that each turn writes.
  struct Output {
    VarId array = no_var;
    Index index;
  };
  /// What a turn takes from those before it.
  struct State {
    std::string name;
    /// A tensor outside the loop; else slot `index` of `array` as the first turn would read it.
    VarId initial = no_var;
    VarId array = no_var;
    Index index = {};
    VarId boot = no_var;
    bool shrinks = false;  ///< rows leave with their sequences
    bool changes = true;   ///< false: one row for each sequence that stays, and leaves with its sequence
  };
  /// What a carried var of the loop is: a counter, or a state.
  struct Carried {
    bool counter = false;
    std::size_t state = 0;
  };

  std::vector<StepInput> inputs;
  std::vector<State> states;
  std::vector<VarId> shared;  ///< tensors outside the loop, the same for all rows and turns
  std::vector<Output> outputs;
  std::vector<Carried> carried;
  /// The loop ends before the turn in which `stop_at` is `stop`, an integer outside the loop.
  VarId stop = no_var;
  Index stop_at;
  Program step;
};

/// UnsupportedError says why the while op, which stands in `block`, is no recurrence that may run as one piece.
LoopForm find_loop_form(const Program& program, int block, const Op& loop);

}  // namespace millrace
