// SPDX-License-Identifier: Apache-2.0
#include "gil.h"

#include <atomic>
#include <thread>

#include <unistd.h>

namespace millrace::python {
namespace {

std::atomic<bool> ending{false};
std::atomic<std::thread::id> last_thread{};  // written before `ending`
std::atomic<int> taking{0};                  ///< threads between `begin_taking_gil` and `end_taking_gil`
thread_local int taken_here = 0;             ///< of this thread: a part inside another always goes on

[[noreturn]] void block_for_ever() noexcept {
  for (;;) pause();
}

}  // namespace

UnwindingEndsHere::~UnwindingEndsHere() {
  if (!returned_ && std::uncaught_exceptions() == exceptions_) block_for_ever();  // an unwinding without an exception
}

bool begin_taking_gil() noexcept {
  ++taking;
  ++taken_here;
  if (!ending || taken_here > 1 || last_thread.load() == std::this_thread::get_id()) return true;
  end_taking_gil();
  return false;
}

void end_taking_gil() noexcept {
  --taken_here;
  if (--taking == 0 && ending) taking.notify_all();
}

GilReleased::~GilReleased() {
  if (!begin_taking_gil()) block_for_ever();
  PyEval_RestoreThread(state_);
  end_taking_gil();
}

GilTaken::GilTaken() {
  if (!begin_taking_gil()) block_for_ever();
  state_ = PyGILState_Ensure();
  end_taking_gil();
}

GilKept::GilKept() {
  if (begin_taking_gil()) return;
  PyEval_SaveThread();
  block_for_ever();
}
GilKept::~GilKept() { end_taking_gil(); }

void end_of_threads() {
  last_thread = std::this_thread::get_id();
  ending = true;
  PyThreadState* const state = PyEval_SaveThread();
  for (int others = taking; others != 0; others = taking) taking.wait(others);
  PyEval_RestoreThread(state);
}

void forget_other_threads() noexcept { taking = taken_here; }

}  // namespace millrace::python
