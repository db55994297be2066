// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Checks a whole program that was read or rewritten: every var is written once and seen only where it is visible and already written, every op
/// agrees with its definition, and its outputs have the types that inference gives. ProgramError names block, op and var.
void check(const Program& program);

}  // namespace millrace
