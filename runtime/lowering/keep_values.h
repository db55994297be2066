// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// A value of a loop's iterations that stays when the iteration is over, for a loop that runs the iterations backwards.
struct KeptValue {
  std::string name;      ///< as it was asked for
  VarId var = no_var;    ///< in the body
  VarId array = no_var;  ///< a TensorArray in the loop's block, made before the loop: slot t is the value in iteration t
};

/// A pass over a whole program: the while op whose body is block `body` also writes the values called `names` to arrays of their own. All
/// outputs keep their bits, and the loop its backend. Fused, the op that makes a value writes it into the one slab of its array, without a copy
/// where its elements lie side by side; iteration by iteration, each value is one more write. So the arrays take the place of step scopes, value by
/// value.
///
/// Slots are numbered as the iterations are, and hold as many rows as live in the iteration; when the loop reads an array that has an order, they
/// have that order too, and `pack` and `shrink` take them. A value of another dtype that the loop's holds
/// exactly (truth as 1 or 0, bf16) is kept in the loop's. The arrays have no reader yet: read them behind the loop, or make them outputs
/// (`Program::add_output`); a fused loop does not write an array without a reader.
///
/// A name is that of a var of the body, or NAME.i … of a part of a built-in cell (spell_cell): the cell is then written out. A name may
/// come once. UnsupportedError when the loop is no recurrence (loop_form.h): it keeps its step scopes instead; and for a value that depends
/// on no rows, such as a count of iterations, holds rows of sequences that have ended, or is of no dtype that rows have. ProgramError for a name
/// that no var of the body has. Then the program is as it was.
std::vector<KeptValue> keep_values(Program& program, int body, const std::vector<std::string>& names);

/// Keeps values of several loops: each name is that of a var of some loop's body, or of a part of a cell there.
std::vector<KeptValue> keep_values(Program& program, const std::vector<std::string>& names);

}  // namespace millrace
