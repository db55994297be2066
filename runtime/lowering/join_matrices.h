// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Makes one op of each loop of block 0 over dense inputs whose one state is a matrix for each head that an iteration updates by an outer product and reads by
/// queries, as `layers::linear_attention` and its like spell it (internal/matrix_states.h). `matrix_recurrence` reads the inputs where they lie, also in front of
/// transposes that brought their steps to axis 0; element-wise functions of one input, or of what is read, are computed for all steps at once. Bits stay the same.
/// For host memory, behind `fold_constants`. True where there was such a loop.
bool join_matrices(Program& program);

/// Whether a loop of block 0 looks like one of matrices at a glance: false where `join_matrices` finds none.
bool may_join_matrices(const Program& program);

}  // namespace millrace
