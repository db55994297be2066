// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Options of the lowering of a program to a recurrence.
struct RecurrenceOptions {
  /// For a graph that is one step already: which input takes the next value of which output, such as {"h", "hn"}. Steps give such an output, too,
  /// where no other is known step by step. Empty: the program works on whole sequences, and its loops over time are found.
  std::vector<std::pair<std::string, std::string>> states;
  /// Values at the start, by input, where none is given: of a state, or of another input that is given at the start. Others begin as zeros.
  std::map<std::string, Tensor> defaults;
  /// Inputs that never change, by name: a sampling rate.
  std::map<std::string, Tensor> constants;
  /// Extents of one row of a live input, or of an input that is given at the start, where the program leaves them open. Others that are open are 1.
  std::map<std::string, DDim> rows;
};

/// The normal form of a program that is causal in its input: what a step takes, what it gives, and what it carries from one step to the
/// next. Streaming works on this form alone.
///
/// `step` is a straight-line program for one step of one sequence. Its inputs are, in order: the rows of `inputs`, then the carried values
/// of `states`. Its outputs: `outputs`, then the next values of those states that change. `batched` is the same for N sequences at once:
/// each input and output has a leading axis of extent N, and row i has the bits that `step` gives for sequence i. `start` computes the
/// first values of all states from `given`, once for a sequence.
struct Recurrence {
  /// Something that arrives with every step. A program's live input of f32[?, 40] takes rows of [40]; `step` sees them as [1, 40].
  struct Input {
    std::string name;
    DType dtype = DType::f32;
    DDim row;   ///< extents of what arrives
    DDim dims;  ///< extents that `step` takes
  };
  /// Something that may be given when a sequence starts (a boot); `otherwise` when it is not.
  struct Given {
    std::string name;
    DType dtype = DType::f32;
    DDim dims;
    Tensor otherwise{};  ///< on the CPU; empty: zeros
  };
  /// A carried value: a loop's variable, a window that array reads reach back, the left context of a convolution; or a value that stays.
  struct State {
    std::string name;
    DType dtype = DType::f32;
    DDim dims;
    std::string origin;   ///< for people: "carried by loop 'h'", "left context of conv1d 'y'"
    bool changes = true;  ///< false: set at the start and only read
  };
  struct Output {
    std::string name;
    DType dtype = DType::f32;
    DDim row;   ///< extents of what one step gives to a client
    DDim dims;  ///< extents that `step` gives
  };

  /// The opening or closing of an inner sequence. Inputs of `program`: the rows of `inputs`, then all `states`; its outputs: the
  /// rows of `outputs`, then the next values of the states that `changes` lists. `batched` is the same for N sequences at once.
  struct Boundary {
    int level = 1;                  ///< of the inner sequence: 1 … levels − 1
    bool opens = true;              ///< else closes
    std::vector<Input> inputs{};    ///< inputs that arrive once for each sequence of the level, and are there when it opens
    std::vector<Output> outputs{};  ///< outputs given once for each, when it closes
    std::vector<std::size_t> changes{};
    std::vector<std::pair<std::size_t, Tensor>> constants{};  ///< states that take a value which is known now
    Program program;
    Program batched;
  };

  Program step;
  Program batched;
  Program start;  ///< inputs: `given`; outputs: the first values of `states`, in order
  std::vector<Input> inputs{};
  std::vector<Given> given{};
  std::vector<State> states{};
  std::vector<Output> outputs{};
  /// Outputs of the program that are known only when a sequence has ended, and are not streamed.
  std::vector<std::string> at_end{};
  /// Levels of LoD above a row of `inputs`. A session is one sequence of level 0; from level 1 on, inner sequences open and close in it.
  int levels = 1;
  /// Opening level 1 … levels − 1, then closing level levels − 1 … 1.
  std::vector<Boundary> boundaries{};
  /// The axis of the inputs along which rows arrive, where several axes were open; else -1.
  int axis = -1;
  /// The name of the extent along which rows arrive, where the names of extents told which inputs are live; else empty.
  std::string extent{};

  const Boundary& opening(int level) const { return boundaries.at(static_cast<std::size_t>(level - 1)); }
  const Boundary& closing(int level) const { return boundaries.at(static_cast<std::size_t>(2 * levels - level - 2)); }

  /// The text of `millrace inspect --streaming`.
  std::string to_string() const;
};

/// ArgumentError unless each pair names an input and an output of the program, and no two pairs share one.
void check_states(const Program& program, const std::vector<std::pair<std::string, std::string>>& states);

/// Finds the recurrence in a program: every op on the live rows must be row-wise and causal. UnsupportedError names the op that is not, and
/// why; a wrong state pair or row shape is an ArgumentError that names both sides.
Recurrence make_recurrence(const Program& program, const RecurrenceOptions& options = {});

}  // namespace millrace
