// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <typeindex>
#include <typeinfo>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

#include <millrace/runtime/array/errors.h>
#include <millrace/runtime/distributed/errors.h>
#include <millrace/runtime/program/errors.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/from_asio.h>
#include <millrace/runtime/training/errors.h>
#include <millrace/streaming/live/live_model.h>
#include <millrace/streaming/protocol/error_code.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/work_failure.h>

#include "bind.h"

namespace millrace::python {
namespace {

/// The Python class of each C++ class. Never freed: an error may be translated while the interpreter goes away.
using Classes = std::map<std::type_index, PyObject*>;
Classes& classes() {
  static auto* made = new Classes();
  return *made;
}

/// `name` as a subclass of millrace.Error, or of its subclass `base`, and of the built-in exception that a Python program expects in such a case; or of a
/// subclass of millrace.Error.
void add(nb::module_& module, const std::type_info& type, const char* name, PyObject* builtin, const char* doc,
         const std::type_info& base = typeid(Error)) {
  const std::string full = std::string("millrace.") + name;
  nb::object bases;
  if (type == typeid(Error) || (builtin != nullptr && PyObject_IsSubclass(builtin, classes().at(typeid(Error))) == 1))
    bases = nb::make_tuple(nb::handle(builtin));
  else if (builtin == nullptr)
    bases = nb::make_tuple(nb::handle(classes().at(typeid(Error))));
  else
    bases = nb::make_tuple(nb::handle(classes().at(base)), nb::handle(builtin));
  PyObject* made = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.ptr(), nullptr);
  if (made == nullptr) throw nb::python_error();
  classes()[type] = made;
  module.attr(name) = nb::handle(made);
}

nb::object python_class(const std::type_info& type) {
  const auto found = classes().find(type);
  return nb::borrow(found != classes().end() ? found->second : classes().at(typeid(Error)));
}

/// Classes of errors of the operating system, of the numbers that Python has a class for.
struct FileNotFound {};
struct PermissionDenied {};
struct ConnectionRefused {};

const std::type_info& class_of_errno(int number) {
  switch (number) {
    case ENOENT: return typeid(FileNotFound);
    case EACCES:
    case EPERM: return typeid(PermissionDenied);
    case ECONNREFUSED: return typeid(ConnectionRefused);
    default: return typeid(IoError);
  }
}

/// An mr.IoError with the attributes of an OSError. `number`: an errno, or 0.
nb::object os_error(const char* message, int number, const std::string& filename = {}) {
  nb::object made = python_class(class_of_errno(number))(message);
  if (number != 0) {
    made.attr("errno") = number;
    made.attr("strerror") = std::strerror(number);
  }
  if (!filename.empty()) made.attr("filename") = filename;
  return made;
}

/// The guard of C++ is the `with` statement of Python.
std::string in_words_of_python(std::string text) {
  const std::string guard = "an open build::Guard on this thread";
  if (const std::size_t at = text.find(guard); at != std::string::npos)
    text.replace(at, guard.size(), "an open program on this thread (with program:)");
  return text;
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error&) {
    const nb::object raised = exception_of(pointer);
    PyErr_SetObject(raised.type().ptr(), raised.ptr());
  } catch (const std::bad_cast&) {
    PyErr_SetString(PyExc_TypeError,
                    "millrace: expected another type of an argument, or of what is in it: help() of the function names them");
  }
}

}  // namespace

nb::object exception_of(const std::exception_ptr& pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const DeadlockError& error) {
    nb::object made = python_class(typeid(error))(error.what());
    nb::list waiters;
    for (const DeadlockError::Waiter& waiter : error.waiters()) waiters.append(nb::make_tuple(waiter.task, waiter.awaited));
    made.attr("waiters") = waiters;
    return made;
  } catch (const ProtocolError& error) {
    nb::object made = python_class(typeid(error))(error.what());
    made.attr("code") = std::string(name_of(error.code()));
    return made;
  } catch (const FileError& error) {
    return os_error(error.what(), error.number(), error.path().string());
  } catch (const IoError& error) {
    return os_error(error.what(), errno_in(error.what()));
  } catch (const LiveError& error) {
    nb::object made = python_class(typeid(error))(error.what());
    made.attr("session") = error.session();
    made.attr("step") = error.step();
    return made;
  } catch (const ProgramError& error) {
    return python_class(typeid(error))(in_words_of_python(error.what()));
  } catch (const Error& error) {
    return python_class(typeid(error))(error.what());
  } catch (const std::exception& error) {
    return nb::borrow(PyExc_RuntimeError)(error.what());
  } catch (...) {
    return nb::borrow(PyExc_RuntimeError)("an error of another library");
  }
}

void expect_there(const std::filesystem::path& path) {
  if (::access(path.c_str(), R_OK) == 0) return;
  const int number = errno;
  throw FileError(fmt::format("{}: cannot open: {}", path.string(), std::strerror(number)), path, number);
}

int errno_in(std::string_view message) {
  constexpr int most = 133;  // EHWPOISON, the last of Linux
  for (int number = 1; number <= most; ++number)
    if (message.ends_with(": " + std::string(std::strerror(number)))) return number;
  return 0;
}

void bind_errors(nb::module_& m) {
  add(m, typeid(Error), "Error", PyExc_Exception,
      "Base of every error of this library: one line that says what was expected, found, and where.");
  add(m, typeid(ArgumentError), "ArgumentError", PyExc_ValueError, "A value outside what a function takes.");
  add(m, typeid(ShapeError), "ShapeError", PyExc_ValueError, "Extents or a rank that do not fit.");
  add(m, typeid(DTypeError), "DTypeError", PyExc_TypeError, "An element type that does not fit.");
  add(m, typeid(IndexError), "IndexError", PyExc_IndexError, "An index outside its range, or a name that is not there.");
  add(m, typeid(LoDError), "LoDError", PyExc_ValueError, "Levels of sequences that are invalid, missing or different.");
  add(m, typeid(PlaceError), "PlaceError", PyExc_ValueError, "Memory or a backend that is elsewhere or absent.");
  add(m, typeid(UninitializedError), "UninitializedError", PyExc_ValueError, "Memory that nothing was ever written to.");
  add(m, typeid(NotReadyError), "NotReadyError", PyExc_RuntimeError, "Elements that their stream has not produced yet.");
  add(m, typeid(ReadOnlyError), "ReadOnlyError", PyExc_ValueError, "A write to storage that is shared and frozen.");
  add(m, typeid(OutOfMemoryError), "OutOfMemoryError", PyExc_MemoryError, "A budget or a device that is full.");
  add(m, typeid(OverflowError), "OverflowError", PyExc_OverflowError, "A size that does not fit its integer.");
  add(m, typeid(UnsupportedError), "UnsupportedError", PyExc_NotImplementedError, "Something this build or this program does not have.");
  add(m, typeid(ParseError), "ParseError", PyExc_ValueError, "Text or bytes that are not what their format says.");
  add(m, typeid(IoError), "IoError", PyExc_OSError, "A file or socket that failed. `errno` and `filename`, where they are known.");
  add(m, typeid(ThreadError), "ThreadError", PyExc_RuntimeError, "A thread that the system does not start.");
  m.attr("IoError").attr("__str__") = nb::handle(PyExc_Exception).attr("__str__");  // OSError's own leaves the message out
  add(m, typeid(ProgramError), "ProgramError", PyExc_RuntimeError, "A program that is refused when it is built, loaded or rewritten.");
  add(m, typeid(WrittenTwiceError), "WrittenTwiceError", PyExc_RuntimeError, "A slot of a TensorArray that already has its value.");
  add(m, typeid(ClosedError), "ClosedError", PyExc_RuntimeError,
      "A write to a closed array, a read past where it was closed, or the use of a live session that is finished or closed.");
  add(m, typeid(NeverWrittenError), "NeverWrittenError", PyExc_RuntimeError, "A slot that nobody can write any more.");
  add(m, typeid(WindowError), "WindowError", PyExc_RuntimeError, "A slot that has left its window, or a write to a full one.");
  add(m, typeid(CancelledError), "CancelledError", nullptr, "A run that was cancelled.");
  add(m, typeid(DeadlineError), "DeadlineError", PyExc_TimeoutError, "A run that did not end within its deadline.");
  add(m, typeid(BlockingError), "BlockingError", PyExc_RuntimeError, "A blocking call on a thread that must run tasks.");
  add(m, typeid(DeadlockError), "DeadlockError", PyExc_RuntimeError,
      "Tasks that wait for each other, or for what nobody will do. `waiters`: (task, what it waits for) of each.");
  add(m, typeid(DeviceError), "DeviceError", PyExc_RuntimeError, "Work on a device that did not run to its end.");
  add(m, typeid(ProtocolError), "ProtocolError", PyExc_ConnectionError,
      "A session with a server that ended early. `code`: why, as docs/protocol.md names it; `retry_after_ms`, where the server said it; "
      "`state`, of a "
      "server that went away: where the sequence stood.");
  for (const char* name : {"code", "retry_after_ms", "state"}) m.attr("ProtocolError").attr(name) = nb::none();
  add(m, typeid(SavedStateError), "SavedStateError", classes().at(typeid(ParseError)),
      "A saved state of a session that is of another program or another key, or was changed.");
  add(m, typeid(CommunicationError), "CommunicationError", PyExc_ConnectionError,
      "Work between the ranks of a job that did not come about.");
  add(m, typeid(RankError), "RankError", classes().at(typeid(CommunicationError)), "A rank of a job that has left, or whose work failed.");
  classes()[typeid(MismatchError)] = classes()[typeid(AbortedError)] = classes()[typeid(CommunicationError)];
  classes()[typeid(PeerError)] = classes()[typeid(RankError)];
  add(m, typeid(training::TrainingError), "TrainingError", PyExc_ArithmeticError,
      "Training that cannot go on: a loss or a gradient that is not finite, a checkpoint of another job, a job that was stopped.");
  classes()[typeid(training::StoppedError)] = classes()[typeid(training::TrainingError)];
  add(m, typeid(LiveError), "LiveError", PyExc_RuntimeError,
      "A step that failed, and with it its live session. `session`: its number; `step`: the first step without a result.");
  add(m, typeid(FileNotFound), "FileNotFoundError", PyExc_FileNotFoundError, "A file or a folder that is not there.", typeid(IoError));
  add(m, typeid(PermissionDenied), "PermissionError", PyExc_PermissionError, "A file or a folder that may not be read or written.",
      typeid(IoError));
  add(m, typeid(ConnectionRefused), "ConnectionRefusedError", PyExc_ConnectionRefusedError, "An address where no server listens.",
      typeid(IoError));
  add(m, typeid(KeyError), "KeyError", PyExc_KeyError, "A name that a mapping lacks.", typeid(IndexError));
  m.attr("KeyError").attr("__str__") = nb::handle(PyExc_Exception).attr("__str__");  // KeyError's own puts quotes around the message
  nb::register_exception_translator(translate);
}

}  // namespace millrace::python
