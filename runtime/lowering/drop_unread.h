// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Takes out the `last_rows` whose result nobody reads: recurrent layers say what their last states are, and few ask. (Other ops stay: a read
/// that can never be answered is an error, read or not.)
void drop_unread(Program& program);

}  // namespace millrace
