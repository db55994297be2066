// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/task/task.h>

namespace millrace {

/// The tasks that run ops on arrays, since a slot may have to be waited for. The context outlives the task. Null for other ops.
task<void> (*find_async_op(const std::string& type))(OpContext&);
/// The same op as a function, for inputs that it need not wait for. The function returns false, and has set nothing, where the op has to run as a task all
/// the same. Null: there is none.
bool (*find_immediate_op(const std::string& type))(OpContext&);

/// Whether the op may have to wait now. False: its task ends without suspending, so that the executor need not spawn it.
bool may_suspend(const OpContext& context);

}  // namespace millrace
