// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/task.h>

#include <millrace/runtime/task/errors.h>

namespace millrace {

void throw_empty_task(bool started) {
  throw EmptyTaskError(started ? "task: expected a task that was not awaited yet, found one that was awaited, spawned or started before"
                               : "task: expected a task that a coroutine made, found one that is default-made or moved from");
}

}  // namespace millrace
