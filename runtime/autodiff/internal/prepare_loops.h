// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>

#include <millrace/runtime/program/program.h>

namespace millrace::autodiff {

/// Rewrites a program so that its loops have a simple backward; outputs keep their bits. Active built-in cells are written out
/// (layers/spell_cells.h). Pure ops of a loop's body whose inputs all come from outside the loop go in front of it when they are active: a
/// weight that the body transposes is transposed once.
void prepare_loops(Program& program, const std::set<VarId>& active);

}  // namespace millrace::autodiff
