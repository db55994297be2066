// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Takes out the `last_rows` whose result no op reads: recurrent layers give their last states, and few programs read them. (Other ops stay: a read
/// that can never be answered is an error, read or not.)
void drop_unread(Program& program);

/// Takes out the ops that take nothing, products, those that give lists of whole numbers (shapes, places), or give what they get in another shape (OpTraits::view), and whose result no op reads, those behind which nothing is left included. An
/// importer makes such ops on its way.
void drop_unread_views(Program& program);

}  // namespace millrace
