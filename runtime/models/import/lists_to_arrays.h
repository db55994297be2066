// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// A pass over a whole program: a list that splits a tensor into the items of an axis, and that loops read item by item by a count of their iterations,
/// becomes an array of those items. So a loop over such a list fuses, goes live and is trained as one over an array. Lists with another reader, or read
/// at another place, stay.
void lists_to_arrays(Program& program);

}  // namespace millrace
