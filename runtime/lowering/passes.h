// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/runtime/program/program.h>

/// Rewritings of a straight-line program that is one iteration of a loop (LoopForm::step). Each keeps inputs and outputs, and the bits of every output.
namespace millrace::passes {

/// Ops of one type with the same inputs and attributes become one.
Program share_expressions(const Program& step);

/// An `lstm_cell` whose X does not depend on the states takes it projected: `matmul(X, W)` is free to leave the loop. The first
/// `states_begin` inputs, and those from `states_end` on, are no states.
Program project_cells(const Program& step, std::size_t states_begin, std::size_t states_end);

/// Products of the same rows with several weights become one product with the weights side by side.
Program merge_products(const Program& step);

/// Where a value of an iteration comes from.
struct Source {
  enum class From : std::uint8_t {
    input,      ///< a step input
    state,      ///< a value that the iteration before left
    shared,     ///< the same for all rows and iterations
    invariant,  ///< an output of `invariant`
    ahead,      ///< an output of `ahead`
    step        ///< an output of `step`
  };
  From from = From::input;
  std::size_t place = 0;
  bool operator==(const Source&) const = default;
};

/// A part of an iteration, with where each of its inputs comes from.
struct Phase {
  Program program;
  std::vector<Source> inputs;
};

/// An iteration, divided by dependence on states.
struct Phases {
  Phase invariant;  ///< depends on shared values alone: once for the whole loop
  Phase ahead;      ///< depends on no state: for a run of iterations at once, before them
  Phase step;       ///< iteration by iteration
  Phase behind;     ///< no state depends on it: for a run of iterations at once, behind them. Empty unless it holds a product
  std::vector<Source>
      outputs;  ///< of the iteration: the sources of the values; From::step with a place past the outputs of `step` means `behind`
};
/// `inputs` step inputs, then `states` states, then shared values; `outputs` outputs, then the next states.
Phases split(const Program& step, std::size_t inputs, std::size_t states, std::size_t outputs);

}  // namespace millrace::passes
