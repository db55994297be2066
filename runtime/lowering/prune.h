// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// The straight-line `program` without ops and weights that no output needs. Inputs and outputs stay.
Program prune(const Program& program);

}  // namespace millrace
