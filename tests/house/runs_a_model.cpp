// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/models/import/model.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>

int main(int, char** arguments) {
  millrace::ThreadExecutor executor(1);
  const auto result = millrace::sync_wait(executor, millrace::run(millrace::load_model(arguments[1]), {}));
  return result.outputs().empty();
}
