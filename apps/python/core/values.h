// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include <millrace/runtime/program/value.h>
#include <millrace/runtime/program/var_type.h>

#include "bind.h"

/// Values of Python as values of the library, and back. All of it expects the GIL.
namespace millrace::python {

/// A DType, its name ("f32", "float32"), or what names one: a dtype of NumPy or PyTorch. DTypeError, listing the known names.
DType dtype_from(nb::handle x);

/// The name of the class of `x`.
std::string kind_of(nb::handle x);
/// TypeError: "WHO: expected EXPECTED, found …".
[[noreturn]] void refuse_argument(nb::handle x, const std::string& who, const char* expected);
/// `x` as a T. TypeError: "WHO: expected EXPECTED, found …".
template <class T>
T argument(nb::handle x, const std::string& who, const char* expected) {
  T made;
  if (!nb::try_cast<T>(x, made)) refuse_argument(x, who, expected);
  return made;
}
/// The argument `threads` of `who`. ArgumentError unless it is 1 to 1024, as of the command.
int threads_from(std::int64_t threads, const char* who);

/// Whether `x` is a list or a tuple.
bool is_list(nb::handle x);
/// Whether `x` is a bool, an int or a float of Python, or of a derived class, as `numpy.float64` is.
bool is_number(nb::handle x);
/// Whether `x` is a float of a derived class that exports its memory, as `numpy.float64`. Alone it is f64, as an array of it; beside other numbers it is one
/// of them.
bool is_sized_float(nb::handle x);
/// Whether `x` exports its memory: by the buffer protocol, or by DLPack.
bool exports_memory(nb::handle x);
/// A view of the memory that `x` exports, which lives as long as the view; frozen. Copied only where the layout says so: negative strides,
/// or elements that are not aligned. DTypeError, PlaceError.
Tensor tensor_sharing(nb::handle x);
/// The elements of a buffer of integers without a dtype here (16 bits, unsigned 32 and 64) as `wanted`, i32 or i64, where it holds every number of their type,
/// or i64 for unsigned 64; nothing for other exporters. OverflowError for an element from 2⁶³ on.
std::optional<Tensor> widened_from(nb::handle x, DType wanted);
/// The memory of an array of rows that are C-contiguous, of that dtype and those extents, read where they lie: neither copied nor checked further. Not valid
/// for anything else, whatever `tensor_from` would make of it.
class PlainRows {
 public:
  PlainRows(nb::handle x, DType dtype, const DDim& dims) noexcept;
  ~PlainRows();
  PlainRows(const PlainRows&) = delete;
  PlainRows& operator=(const PlainRows&) = delete;
  bool valid() const noexcept { return valid_; }
  std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_;
  bool held_ = false;
  bool valid_ = false;
};
/// A Tensor, exported memory (shared, or widened to `wanted` as `widened_from` does), numbers, or nested lists of them. Lists give `wanted`, or f32, i64 or
/// bool by their contents. ShapeError for lists of different lengths.
Tensor tensor_from(nb::handle x, std::optional<DType> wanted = {});
/// Sequences with `levels` levels from nested lists; below them are rows: a tensor, exported memory, or lists. `row` are the extents of a
/// row, where no sequence has one. A PackedSequence of PyTorch gives its sequences in its caller's order.
LoDTensor ragged_from(nb::handle x, int levels, std::optional<DType> wanted = {}, const std::optional<DDim>& row = {});

/// A value fed to input `name`: also numbers and lists, which take the dtype that the program wants; None for nothing. Elements lie row-major.
Value value_from(nb::handle x, const std::string& name, const VarType& wanted);
/// A slot of an array of type `array`, checked against it: the errors of `check_feed`.
Value slot_from(nb::handle x, const std::string& name, const VarType& array);
/// Rows and the lengths of their sequences: a list of integers, or of several levels a list of such; an array of integers; or the text of an LoD.
LoDTensor lod_tensor_from(nb::handle rows, nb::handle lengths);
/// A Tensor, a LoDTensor, None, or a list of them.
nb::object object_from(const Value& value);
/// A Tensor, or with levels a LoDTensor.
nb::object object_from(const LoDTensor& value);

/// A value of any kind, as a run gave it, for another run: Python sees nothing of it.
struct ValueObject {
  Value value;
};

/// The integer that `operator.index` gives. Python's TypeError for an array of more than one element.
std::int64_t index_from(nb::handle x);
/// Whether `x` is an array of indices. A number of NumPy exports memory too, and is none.
bool is_array_of_indices(nb::handle x);

/// The end of a message about `name`, which is none of `names` (joined by ", "): ": did you mean 'x'?" for the closest of them; nothing where none is close.
std::string meant(const std::string& name, const std::string& names);

/// The arguments of `reshape`: extents, or a sequence of them. TypeError, named by `who`.
std::vector<std::int64_t> extents_from(const nb::args& shape, const char* who);

/// A tensor of one's own with the elements in row-major order.
Tensor copy_of(const Tensor& x);

/// For arguments of C++ functions: Python objects that become a Tensor, and a Var, by themselves.
struct TensorLike {};
struct VarLike {};

}  // namespace millrace::python

namespace nanobind::detail {

/// Accepts what `tensor_from` does, but for Tensors.
template <>
struct type_caster<millrace::python::TensorLike> {
  NB_TYPE_CASTER(millrace::python::TensorLike, const_name("TensorLike"))
  bool from_python(handle x, uint32_t, cleanup_list*) noexcept;
  static handle from_cpp(const millrace::python::TensorLike&, rv_policy, cleanup_list*) noexcept { return {}; }
};
template <>
struct type_caster<millrace::python::VarLike> {
  NB_TYPE_CASTER(millrace::python::VarLike, const_name("VarLike"))
  bool from_python(handle x, uint32_t, cleanup_list*) noexcept;
  static handle from_cpp(const millrace::python::VarLike&, rv_policy, cleanup_list*) noexcept { return {}; }
};

}  // namespace nanobind::detail
