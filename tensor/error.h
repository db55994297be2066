// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <typeinfo>

namespace millrace {

/// Base of every error that millrace throws. `what()` is one line that names what was expected, what was found, and where.
class Error : public std::exception {
 public:
  explicit Error(const std::string& what) : what_(what) {}
  const char* what() const noexcept override { return what_.c_str(); }
  /// Says where, once that is known: " in op matmul of block 1, iteration 3". The type stays.
  void add_context(const std::string& where) { what_ += where; }
  /// The same error as an object of its own; null from a type that does not say how.
  virtual std::exception_ptr copy() const { return typeid(*this) == typeid(Error) ? std::make_exception_ptr(*this) : nullptr; }

 private:
  std::string what_;
};

/// Throws `error` to one of several receivers, as an object of its own where it can be copied: a receiver may add to it while others read
/// theirs.
[[noreturn]] inline void rethrow_own(const std::exception_ptr& error) {
  std::exception_ptr own;
  try {
    std::rethrow_exception(error);
  } catch (const Error& shared) {
    own = shared.copy();
  } catch (...) {  // foreign types are rethrown as they are
  }
  std::rethrow_exception(own != nullptr ? own : error);
}

/// Defines a typed error with its own name: catch it to tell one cause from another.
#define MILLRACE_ERROR(Name, Base)                                                                                                      \
  class Name : public Base {                                                                                                            \
   public:                                                                                                                              \
    explicit Name(const std::string& what) : Base(what) {}                                                                              \
    std::exception_ptr copy() const override { return typeid(*this) == typeid(Name) ? std::make_exception_ptr(Name(*this)) : nullptr; } \
  }

MILLRACE_ERROR(ArgumentError, Error);       ///< a value outside what a function takes
MILLRACE_ERROR(ShapeError, Error);          ///< extents or rank that do not fit
MILLRACE_ERROR(DTypeError, Error);          ///< an element type that does not fit
MILLRACE_ERROR(IndexError, Error);          ///< an index outside its range
MILLRACE_ERROR(LoDError, Error);            ///< levels of offsets that are invalid, missing or different
MILLRACE_ERROR(PlaceError, Error);          ///< memory or a backend that is elsewhere or absent
MILLRACE_ERROR(UninitializedError, Error);  ///< reading memory that nothing was ever written to
MILLRACE_ERROR(NotReadyError, Error);       ///< reading on the host what its stream has not yet produced
MILLRACE_ERROR(ReadOnlyError, Error);       ///< writing to storage that is shared and frozen
MILLRACE_ERROR(OutOfMemoryError, Error);    ///< a budget or a device that is full
MILLRACE_ERROR(OverflowError, Error);       ///< a size that does not fit its integer
MILLRACE_ERROR(UnsupportedError, Error);    ///< something this build or this program does not have
MILLRACE_ERROR(ParseError, Error);          ///< text or bytes that are not what their format says
MILLRACE_ERROR(IoError, Error);             ///< a file or socket that failed
MILLRACE_ERROR(ThreadError, Error);         ///< a thread that the system does not start

}  // namespace millrace
