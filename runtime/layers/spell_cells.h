// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace::layers {

/// Writes the `lstm_cell` or `lstm_gates` that gives `h`, the first of its outputs, out as ops whose values have names: products,
/// sums, activations. The outputs and their bits stay. Of a cell whose h is called NAME the parts are
///
///   NAME.i  NAME.f  NAME.g  NAME.o   the gates, f = 1 − i where they are coupled
///   NAME.a                           the activation of the new c, which o lets through
///
/// False when another op gives `h`: then nothing changes. ProgramError when a name is taken, or nobody knows how many units the cell has.
bool spell_cell(Program& program, VarId h);

}  // namespace millrace::layers
