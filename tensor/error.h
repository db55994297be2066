// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace millrace {

/// Base of every error that millrace throws. `what()` is one line that names what was expected, what was found, and where.
class Error : public std::exception {
 public:
  explicit Error(const std::string& what) : what_(what) {}
  const char* what() const noexcept override { return what_.c_str(); }
  /// Says where, once that is known: " in op matmul of block 1, turn 3". The type stays.
  void add_context(const std::string& where) { what_ += where; }

 private:
  std::string what_;
};

/// Defines a typed error with its own name: catch it to tell one cause from another.
#define MILLRACE_ERROR(Name, Base)                         \
  class Name : public Base {                               \
   public:                                                 \
    explicit Name(const std::string& what) : Base(what) {} \
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

}  // namespace millrace
