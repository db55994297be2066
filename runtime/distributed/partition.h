// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// A program whose loops are shared out among ranks: a program for each, and the values that go from one to another while they run
/// (partition_run.h runs them). Every op of block 0 is in exactly one part; the outputs are the same bit for bit.
struct Partition {
  /// A loop, or several that only work together, and where it runs.
  struct Loop {
    std::vector<int> blocks;   ///< bodies
    std::string name;          ///< of the first, "while 2 (h_last)"
    std::int64_t weights = 0;  ///< elements of weights (fed ones too) and literals that an iteration reads: the estimate of its cost
    int stage = 0;             ///< loops of one stage can run at the same time; those of the next need something of theirs whole
    int rank = 0;
    std::string kept;  ///< why it could not be anywhere else; may be empty
  };
  /// A value that one part makes and another needs, by the name that it has as an output of the one and as an input of the other. An array
  /// goes slot by slot.
  struct Transfer {
    std::string name;
    int from = 0;
    int to = 0;
  };

  int ranks = 1;
  std::string title;
  std::vector<Program> parts;  ///< by rank; one may be empty
  std::vector<Loop> loops;
  std::vector<Transfer> transfers;

  /// Why ranks have nothing to do, and why loops are where they are: a line each; nothing when all ranks have loops and each is free.
  std::vector<std::string> kept() const;
  /// Where each loop runs and why, and what goes from rank to rank.
  std::string to_string() const;
};

/// Shares out the loops of block 0, each with the ops that only it needs. Loops that may run at the same time (the layers of a stack that
/// hand steps on, both directions of a layer) are dealt to the ranks in the order of the program, neighbours together, so that each rank has
/// about as much to compute; where there are fewer of them than ranks, to those that have least so far. A loop of a later stage that reads matrices
/// of an earlier loop, as a backward loop does, is where that loop is. A value that two ranks need, or that is
/// an output, is on rank 0 or on the rank that makes it; a tensor of known extents that is computed from any number of rows, such as the
/// gradient of a weight, is where the rows are. Loops that write one array, read what a later one writes, or work on an array of no fixed size stay
/// together; an op on an array that is fed stays on rank 0. All inputs are inputs of rank 0's part, and of the parts that need them.
///
/// `program` is first simplified as an Executable does. ArgumentError below 1 rank.
Partition partition_over_ranks(Program program, int ranks);

}  // namespace millrace
