// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// A while op as a recurrence inside its program: which rows an iteration takes from which arrays, what it carries, what it writes, and when the
/// loop ends. A value that is array-carried in the program (`states.read(step − 1, boot)` … `states.write(step, state)`) is carried here; a read
/// further back is a window of that many states.
///
/// `step` is one iteration for all its sequences: a straight-line program whose inputs are, in order, the step inputs, the states and the shared
/// values, and whose outputs are what the iteration writes, then the next values of those states that change. Rows lie along axis 0, of unknown
/// extent. In an unbatched form a slot or state [a, b] of the program is one row [1, a, b] of the step.
struct LoopForm {
  /// A number that changes by the same amount each iteration: `first`, plus `stride` times the iterations before.
  struct Index {
    /// An integer from outside the loop, or the size of an array there, and how many times it counts; never 0 times.
    struct Term {
      VarId var = no_var;
      std::int64_t times = 0;
      friend bool operator==(const Term&, const Term&) = default;
    };
    /// A number plus terms, by var.
    struct Sum {
      std::int64_t number = 0;
      std::vector<Term> terms;
    };
    std::int64_t stride = 0;
    Sum first;           ///< in values that the loop itself reads
    Sum roots;           ///< the canonical sum of `first`: two numbers are equal where their canonical sums are
    VarId var = no_var;  ///< of the body, which holds the number; none where no var does

    /// The difference of this number and `other`, if it is one number in every iteration; nothing where it depends on the iteration or on values.
    std::optional<std::int64_t> ahead_of(const Index& other) const;
  };
  /// A slot that each iteration reads, and no op writes while the loop runs.
  struct StepInput {
    VarId array = no_var;
    Index index;
    VarId boot = no_var;   ///< the rows before slot 0, if the loop may read there
    bool shrinks = false;  ///< rows of sequences that have ended are left out
  };
  /// A slot that each iteration writes.
  struct Output {
    VarId array = no_var;
    Index index;
    /// Of its slots, all but that of the last iteration are read by the iterations alone; what they carry need not be kept.
    bool last_alone = false;
  };
  /// A value that an iteration takes from those before it.
  struct State {
    std::string name;
    /// A tensor outside the loop; else slot `index` of `array` as the first iteration would read it.
    VarId initial = no_var;
    VarId array = no_var;
    Index index = {};
    VarId boot = no_var;
    bool shrinks = false;  ///< rows leave with their sequences
    bool changes = true;   ///< false: one row for each sequence that stays, and leaves with its sequence
  };
  /// The kind of a carried var of the loop: a counter, or a state.
  struct Carried {
    bool counter = false;
    std::size_t state = 0;
    std::int64_t stride = 0;  ///< of a counter
  };
  /// The loop ends before the iteration in which `left` is 0, or beyond it when `beyond`. Its stride is not 0.
  struct Stop {
    Index left;
    bool beyond = false;
  };

  std::vector<StepInput> inputs;
  std::vector<State> states;
  std::vector<VarId> shared;  ///< tensors outside the loop, the same for all rows and iterations
  std::vector<Output> outputs;
  std::vector<Carried> carried;
  Stop stop;
  std::vector<VarId> counted;  ///< the vars of all terms of `first`, each once, in order
  /// Whether slots and states have no axis for sequences: each is one row as it stands, so that ops may move, fold and number all its axes.
  bool unbatched = false;
  Program step;
};

/// The form of the while op, which stands in `block`. `unbatched`: its unbatched form, where all slots and states have static shapes and no order.
/// UnsupportedError says why the loop is no recurrence that may run as one piece.
LoopForm find_loop_form(const Program& program, int block, const Op& loop, bool unbatched = false);

}  // namespace millrace
