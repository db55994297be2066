// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Checks a whole program that was read or rewritten: every var is written once and seen only where it is visible and already written,
/// every op agrees with its definition, its outputs have the types that inference gives, and each block but the first belongs to one op.
/// ProgramError names block, op and var.
void check(const Program& program);

}  // namespace millrace
