// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Takes out the `last_rows` and the `pack` whose result no op reads (recurrent layers give their last states and the rows of all steps, and few programs read
/// both), and the pure ops of block 0 that have a kernel, likewise. Other ops stay: a read of a slot that can never be answered is an error, read or not.
void drop_unread(Program& program);

/// Takes out the ops that an importer made on its way and whose result no op reads: constants, views (OpTraits::view), products, lists, and whole numbers such
/// as shapes, and values that are made of such numbers alone. An op whose last reader went goes too.
void drop_unread_views(Program& program);

}  // namespace millrace
