// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <millrace/runtime/executor/compiled_program.h>

namespace millrace {

/// The block with ops over small floating-point tensors joined into groups (row_group.h); nothing where no two ops join. A group stands where the
/// last of its ops may stand: before the first other op that reads one of its outputs. It never passes a `break_if`.
std::optional<CompiledBlock> join_ops(const CompiledProgram& compiled, const CompiledBlock& block);

}  // namespace millrace
