// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/start_run.h>

#include <millrace/runtime/task/errors.h>

namespace millrace {

void throw_on_runtime_thread(const std::string& what) {
  if (RuntimeThread::current() == nullptr) return;
  throw BlockingError(what + " on a thread that runs tasks would block them: expected another thread, or co_await");
}

bool RunningState::drive_until_idle() {
  for (;;) {
    if (ended()) return true;
    const Executor::Drive drive = executor_->drive();
    if (drive == Executor::Drive::own_threads) {
      try {
        Point(shared_from_this(), 1).wait();
      } catch (...) {
        // The outcome holds this error.
      }
      return true;
    }
    if (drive == Executor::Drive::idle) return ended();
  }
}

void RunningState::wait_until_ended() {
  // The text of an error asks for memory: where none is, a run that was started is driven to its end all the same.
  if (RuntimeThread::current() != nullptr) throw_on_runtime_thread("waiting for run '" + run_->name() + "'");
  if (drive_until_idle()) return;
  std::string waits;
  for (const std::string& line : run_->waits()) waits += "; " + line;
  run_->cancel();
  drive_until_idle();
  throw BlockingError("run '" + run_->name() + "' did not end: its executor has nothing to run at the present time of its clock" + waits);
}

}  // namespace millrace
