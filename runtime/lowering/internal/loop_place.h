// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <set>
#include <utility>

#include <millrace/runtime/lowering/loop_form.h>

namespace millrace::lowering {

/// Block and place of the while op whose body is block `body`. ProgramError when there is none.
std::pair<int, std::size_t> find_loop(const Program& program, int body);

/// Vars of the body that depend on the rows of an iteration: on slots that it reads, on states, on rows from outside.
std::set<VarId> row_vars(const Program& program, int body, const LoopForm& form);

/// The dtype in which slots of the loop's own keep its numbers: that of its rows. Truth and bf16 are kept in it too, values of no other dtype are.
DType kept_dtype(const LoopForm& form);

}  // namespace millrace::lowering
