// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include "bind.h"

/// The GIL of a thread that may outlive the interpreter. CPython up to 3.13 ends a daemon thread that wants the GIL while the interpreter goes away by
/// `pthread_exit`, whose unwinding C++ frames answer with `std::terminate`. Such a thread blocks here for ever instead, as CPython 3.14 has it: it holds no
/// lock, and ends with the process.
namespace millrace::python {

/// Releases the GIL. The destructor takes it back; on a daemon thread that comes behind `end_of_threads` the destructor does not return.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased();
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

/// Takes the GIL on a thread that released it further out. Behind `end_of_threads` the constructor does not return on a daemon thread.
class GilTaken {
 public:
  GilTaken();
  ~GilTaken() { PyGILState_Release(state_); }
  GilTaken(const GilTaken&) = delete;
  GilTaken& operator=(const GilTaken&) = delete;

 private:
  PyGILState_STATE state_;
};

/// A short part of the library that calls Python with the GIL held, and so may lose it on the way: `end_of_threads` waits for its end. The constructor does
/// not return on a daemon thread behind `end_of_threads`.
class GilKept {
 public:
  GilKept();
  ~GilKept();
  GilKept(const GilKept&) = delete;
  GilKept& operator=(const GilKept&) = delete;
};

/// Blocks for ever when `pthread_exit` unwinds its frame.
class UnwindingEndsHere {
 public:
  UnwindingEndsHere() = default;
  ~UnwindingEndsHere();
  UnwindingEndsHere(const UnwindingEndsHere&) = delete;
  UnwindingEndsHere& operator=(const UnwindingEndsHere&) = delete;
  void returned() { returned_ = true; }

 private:
  int exceptions_ = std::uncaught_exceptions();
  bool returned_ = false;
};

/// Calls Python code of a user from C++, where frames further out own references. The wait of a daemon thread for the GIL inside that code ends by
/// `pthread_exit`, too; the unwinding stops in this frame, which is the first that has a destructor. The value of `f`.
template <class F>
auto calling_python(F f) {
  UnwindingEndsHere here;
  auto made = f();
  here.returned();
  return made;
}

/// Calls `f` with the GIL, for a thread of the library. No call once the interpreter goes away.
bool begin_taking_gil() noexcept;
void end_taking_gil() noexcept;
template <class F>
void with_gil(F f) {
  if (!nb::is_alive() || !begin_taking_gil()) return;
  const nb::gil_scoped_acquire gil;
  end_taking_gil();
  f();
}

/// From here on no thread but the caller takes the GIL by the functions above; waits for those that are about to. With the GIL held, at the exit of the
/// interpreter.
void end_of_threads();
/// In the child of a fork, whose other threads do not exist.
void forget_other_threads() noexcept;

}  // namespace millrace::python
