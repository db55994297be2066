// SPDX-License-Identifier: Apache-2.0
#include "results_wait.h"

#include <algorithm>
#include <new>
#include <utility>

#include "gil.h"

namespace millrace::python {
namespace {

// ---- What a task waits for ----

/// The part of asyncio.Future's interface that asyncio.Task uses of an object that it waits for. One callback: the awaiting task's.
struct WaitObject {
  PyObject_HEAD;
  std::shared_ptr<ResultsNews> news;
  PyObject* loop;
  PyObject* waits;
  PyObject* callback;
  PyObject* context;
  PyObject* message;  // of a cancellation
  bool blocking;      // `_asyncio_future_blocking`: true between `yield` and the task that takes it
  enum class State : unsigned char { pending, woken, cancelled } state;
};
using State = WaitObject::State;

PyTypeObject *wait_type = nullptr, *next_type = nullptr;

WaitObject& as_wait(PyObject* self) { return *reinterpret_cast<WaitObject*>(self); }

/// The wait is over: nobody wakes it any more. The caller holds a reference.
void leave(PyObject* self, State state) {
  WaitObject& wait = as_wait(self);
  wait.state = state;
  wait.news->remove(self);
  if (wait.waits != nullptr && PySet_Discard(wait.waits, self) < 0) PyErr_Clear();
}

/// An error of Python is left set, and the result is false.
bool wake(PyObject* self) {
  WaitObject& wait = as_wait(self);
  leave(self, State::woken);
  const nb::object callback = nb::steal(std::exchange(wait.callback, nullptr)), context = nb::steal(std::exchange(wait.context, nullptr));
  if (!callback.is_valid()) return true;
  static PyObject* const run = PyUnicode_InternFromString("run");
  PyObject* const arguments[] = {context.ptr(), callback.ptr(), self};
  return calling_python([&] { return nb::steal(PyObject_VectorcallMethod(run, arguments, 3, nullptr)); }).is_valid();
}

PyObject* get_loop(PyObject* self, PyObject*) {
  Py_INCREF(as_wait(self).loop);
  return as_wait(self).loop;
}

/// `wait.add_done_callback(callback, context=context)`, as asyncio.Task calls it.
PyObject* add_done_callback(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  WaitObject& wait = as_wait(self);
  const bool with_context = count == 1 && names != nullptr && PyTuple_Size(names) == 1;
  if (!with_context || wait.callback != nullptr || wait.state != State::pending) {
    PyErr_SetString(PyExc_RuntimeError, "results of a live session: expected one waiting task, with a context");
    return nullptr;
  }
  Py_INCREF(arguments[0]);
  Py_INCREF(arguments[1]);
  wait.callback = arguments[0];
  wait.context = arguments[1];
  Py_RETURN_NONE;
}

PyObject* cancel(PyObject* self, PyObject* arguments, PyObject* named) {
  WaitObject& wait = as_wait(self);
  static const char* const names[] = {"msg", nullptr};
  PyObject* message = nullptr;
  if (PyArg_ParseTupleAndKeywords(arguments, named, "|O", const_cast<char**>(names), &message) == 0) return nullptr;
  if (wait.state != State::pending) Py_RETURN_FALSE;
  leave(self, State::cancelled);
  Py_XINCREF(message);
  wait.message = message;
  const nb::object callback = nb::steal(std::exchange(wait.callback, nullptr)), context = nb::steal(std::exchange(wait.context, nullptr));
  if (callback.is_valid()) {
    try {
      nb::borrow(wait.loop).attr("call_soon")(callback, nb::handle(self), "context"_a = context);
    } catch (nb::python_error& error) {
      error.restore();
      return nullptr;
    }
  }
  Py_RETURN_TRUE;
}

PyObject* result(PyObject* self, PyObject*) {
  WaitObject& wait = as_wait(self);
  if (wait.state == State::woken) Py_RETURN_NONE;
  try {
    const nb::module_ asyncio = nb::module_::import_("asyncio");
    const nb::object kind = asyncio.attr(wait.state == State::cancelled ? "CancelledError" : "InvalidStateError");
    const nb::object error = wait.message != nullptr && wait.message != Py_None ? kind(nb::borrow(wait.message)) : kind();
    PyErr_SetObject(kind.ptr(), error.ptr());
  } catch (nb::python_error& error) {
    error.restore();
  }
  return nullptr;
}

PyObject* get_blocking(PyObject* self, void*) { return PyBool_FromLong(as_wait(self).blocking ? 1 : 0); }
int set_blocking(PyObject* self, PyObject* value, void*) {
  const int said = value != nullptr ? PyObject_IsTrue(value) : 0;
  if (said >= 0) as_wait(self).blocking = said != 0;
  return said < 0 ? -1 : 0;
}

PyObject* itself(PyObject* self) {
  Py_INCREF(self);
  return self;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  const WaitObject& wait = as_wait(self);
  Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  for (PyObject* const held : {wait.loop, wait.waits, wait.callback, wait.context, wait.message}) Py_VISIT(held);
  return 0;
}

int clear(PyObject* self) {
  WaitObject& wait = as_wait(self);
  wait.news->remove(self);
  for (PyObject** const held : {&wait.waits, &wait.callback, &wait.context, &wait.message}) Py_XDECREF(std::exchange(*held, nullptr));
  return 0;
}

void free_object(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  const auto free = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  free(self);
  Py_DECREF(type);
}

void dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear(self);
  Py_XDECREF(as_wait(self).loop);
  as_wait(self).news.~shared_ptr();
  free_object(self);
}

template <class F>
void* slot(F* function) {
  return reinterpret_cast<void*>(function);
}
template <class F>
PyCFunction method(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// ---- The coroutine ----

struct NextObject {
  PyObject_HEAD;
  std::shared_ptr<ResultsNews> news;
  ResultsNews::Take take;
  PyObject* session;
  PyObject* loop;
  PyObject* waits;
  PyObject* wait;
  bool anext;
  enum class Stage : unsigned char { fresh, begun, done } stage;
};
using Stage = NextObject::Stage;

NextObject& as_next(PyObject* self) { return *reinterpret_cast<NextObject*>(self); }

void drop_wait(NextObject& next) {
  const nb::object wait = nb::steal(std::exchange(next.wait, nullptr));
  if (wait.is_valid() && as_wait(wait.ptr()).state == State::pending) leave(wait.ptr(), State::woken);
}

/// Sets an error of Python from one of C++.
void raise_current() noexcept {
  try {
    throw;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (...) {
    const nb::object error = exception_of(std::current_exception());
    PyErr_SetObject(error.type().ptr(), error.ptr());
  }
}

PySendResult send_to(PyObject* self, PyObject*, PyObject** result) {
  NextObject& next = as_next(self);
  *result = nullptr;
  if (next.stage == Stage::done) {
    PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
    return PYGEN_ERROR;
  }
  next.stage = Stage::begun;
  try {
    if (next.wait == nullptr || as_wait(next.wait).state != State::pending) {
      drop_wait(next);
      nb::object made = next.take(next.session);
      if (made.is_valid()) {
        next.stage = Stage::done;
        if (next.anext && made.is_none()) {
          PyErr_SetNone(PyExc_StopAsyncIteration);
          return PYGEN_ERROR;
        }
        *result = made.release().ptr();
        return PYGEN_RETURN;
      }
      next.wait = next.news->wait(next.loop, next.waits).release().ptr();
    }
    as_wait(next.wait).blocking = true;
    *result = itself(next.wait);
    return PYGEN_NEXT;
  } catch (...) {
    next.stage = Stage::done;
    raise_current();
    return PYGEN_ERROR;
  }
}

/// As an iterator: the result is the value of a StopIteration.
PyObject* send(PyObject* self, PyObject* value) {
  PyObject* result = nullptr;
  if (send_to(self, value, &result) != PYGEN_RETURN) return result;
  const nb::object held = nb::steal(result);
  if (const nb::object stop = nb::steal(PyObject_CallFunctionObjArgs(PyExc_StopIteration, held.ptr(), nullptr)); stop.is_valid())
    PyErr_SetObject(PyExc_StopIteration, stop.ptr());
  return nullptr;
}
PyObject* iterate(PyObject* self) { return send(self, nullptr); }

PyObject* throw_into(PyObject* self, PyObject* arguments) {
  PyObject *kind = nullptr, *value = nullptr, *traceback = nullptr;
  if (PyArg_ParseTuple(arguments, "O|OO", &kind, &value, &traceback) == 0) return nullptr;
  drop_wait(as_next(self));
  as_next(self).stage = Stage::done;
  if (PyExceptionInstance_Check(kind))
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(kind)), kind);
  else
    PyErr_SetObject(kind, value);
  return nullptr;
}

PyObject* close(PyObject* self, PyObject*) {
  drop_wait(as_next(self));
  as_next(self).stage = Stage::done;
  Py_RETURN_NONE;
}

PyObject* qualified_name(PyObject* self, void*) {
  return PyUnicode_FromString(as_next(self).anext ? "LiveSession.__anext__" : "LiveSession.next");
}

int traverse_next(PyObject* self, visitproc visit, void* arg) {
  const NextObject& next = as_next(self);
  Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  for (PyObject* const held : {next.session, next.loop, next.waits, next.wait}) Py_VISIT(held);
  return 0;
}

int clear_next(PyObject* self) {
  NextObject& next = as_next(self);
  next.stage = Stage::done;
  drop_wait(next);
  for (PyObject** const held : {&next.session, &next.loop, &next.waits}) Py_XDECREF(std::exchange(*held, nullptr));
  return 0;
}

void dealloc_next(PyObject* self) {
  PyObject_GC_UnTrack(self);
  if (as_next(self).stage == Stage::fresh) {
    const nb::error_scope kept;
    if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "coroutine '%s' was never awaited",
                         as_next(self).anext ? "LiveSession.__anext__" : "LiveSession.next") < 0)
      PyErr_WriteUnraisable(self);
  }
  clear_next(self);
  as_next(self).news.~shared_ptr();
  free_object(self);
}

PyTypeObject* make(PyType_Spec& spec) {
  PyObject* const made = PyType_FromSpec(&spec);
  if (made == nullptr) throw nb::python_error();
  return reinterpret_cast<PyTypeObject*>(made);
}

PyTypeObject* make_next_type() {
  static PyMethodDef methods[] = {
      {"send", &send, METH_O, nullptr},
      {"throw", &throw_into, METH_VARARGS, nullptr},
      {"close", &close, METH_NOARGS, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyGetSetDef properties[] = {
      {"__qualname__", &qualified_name, nullptr, nullptr, nullptr},
      {"__name__", &qualified_name, nullptr, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, slot(&dealloc_next)}, {Py_tp_traverse, slot(&traverse_next)},
      {Py_tp_clear, slot(&clear_next)},     {Py_tp_iter, slot(&itself)},
      {Py_tp_iternext, slot(&iterate)},     {Py_am_await, slot(&itself)},
      {Py_am_send, slot(&send_to)},         {Py_tp_methods, methods},
      {Py_tp_getset, properties},           {0, nullptr},
  };
  static PyType_Spec spec = {"millrace._core._Next", sizeof(NextObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  return make(spec);
}

PyTypeObject* make_wait_type() {
  static PyMethodDef methods[] = {
      {"get_loop", &get_loop, METH_NOARGS, nullptr},
      {"add_done_callback", method(&add_done_callback), METH_FASTCALL | METH_KEYWORDS, nullptr},
      {"cancel", method(&cancel), METH_VARARGS | METH_KEYWORDS, nullptr},
      {"result", &result, METH_NOARGS, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyGetSetDef properties[] = {
      {"_asyncio_future_blocking", &get_blocking, &set_blocking, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, slot(&dealloc)}, {Py_tp_traverse, slot(&traverse)}, {Py_tp_clear, slot(&clear)},
      {Py_tp_methods, methods},        {Py_tp_getset, properties},        {0, nullptr},
  };
  static PyType_Spec spec = {"millrace._core._ResultsWait", sizeof(WaitObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  return make(spec);
}

}  // namespace

void ResultsNews::remove(PyObject* wait) noexcept {
  const auto found = std::find(waiting_.begin(), waiting_.end(), wait);
  if (found != waiting_.end()) waiting_.erase(found);
}

void ResultsNews::deliver() {
  std::vector<nb::object> due;  // a task that runs may end other waits
  due.reserve(waiting_.size());
  for (PyObject* const wait : waiting_) due.push_back(nb::borrow(wait));
  for (const nb::object& wait : due)
    if (as_wait(wait.ptr()).state == State::pending && !wake(wait.ptr()))
      throw nb::python_error();  // the event loop delivers the rest later
}

nb::object ResultsNews::wait(nb::handle loop, nb::handle waits) {
  PyObject* const made = PyType_GenericAlloc(wait_type, 0);
  if (made == nullptr) throw nb::python_error();
  WaitObject& wait = as_wait(made);
  new (&wait.news) std::shared_ptr<ResultsNews>(shared_from_this());
  wait.loop = loop.inc_ref().ptr();
  wait.waits = waits.inc_ref().ptr();
  nb::object held = nb::steal(made);
  if (PySet_Add(waits.ptr(), made) < 0) throw nb::python_error();
  add(made);
  return held;
}

nb::object ResultsNews::next(nb::handle session, Take take, nb::handle loop, nb::handle waits, bool anext) {
  PyObject* const made = PyType_GenericAlloc(next_type, 0);
  if (made == nullptr) throw nb::python_error();
  NextObject& next = as_next(made);
  new (&next.news) std::shared_ptr<ResultsNews>(shared_from_this());
  next.take = take;
  next.session = session.inc_ref().ptr();
  next.loop = loop.inc_ref().ptr();
  next.waits = waits.inc_ref().ptr();
  next.anext = anext;
  return nb::steal(made);
}

void make_results_types() {
  wait_type = make_wait_type();
  next_type = make_next_type();
}

}  // namespace millrace::python
