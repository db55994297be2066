// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <millrace/runtime/builder/var.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/program/program.h>

#include "values.h"

/// Helpers that the bindings of the builder share.
namespace millrace::python {

using build::Var;

/// The program of the Python class Program. Open guards share it, whatever becomes of the Python object.
struct SharedProgram {
  std::shared_ptr<Program> program;
  std::vector<std::size_t> open = {};  ///< the numbers of the `with` statements on this object, the innermost last
  nb::object ready = {};               ///< the Compiled of the last `run`, if any
  std::uint64_t ready_revision = 0;    ///< of the program that it was made of
};

/// The type of something that is declared: None for an extent that is not known yet.
VarType type_from(nb::handle dtype, nb::handle shape, int lod);
/// The outputs of a run as a Result.
nb::object result_object(RunResult made);

/// The axes of a reduction: None for all, a number, or several.
std::vector<std::int64_t> axes_from(nb::handle axes);
/// A Var, or a literal, tensor or array as a constant. ArgumentError else.
Var var_from(nb::handle x);
/// `x` beside a value of `dtype`: a number, a literal and a list take that dtype. A float beside whole numbers, a Var and an array keep their own.
Var beside(DType dtype, nb::handle x);
/// `x` as a value that goes on beside others of `dtype`, as the state of a loop: numbers and lists of them take that dtype. Floats beside whole numbers, bools,
/// numbers beside bools, a Var and an array keep their own.
Var written_beside(DType dtype, nb::handle x);
/// The dtype of numbers that are written beside one another.
DType dtype_of_numbers(const std::vector<nb::handle>& numbers);
/// The operands of one operation: numbers take the dtype of the first of them that is a Var or an array; without one, that of all numbers together.
std::vector<Var> of_one_dtype(const std::vector<nb::handle>& operands);
/// A Var alone, or several in a list or tuple.
std::vector<Var> vars_from(nb::handle x);
/// One Var alone, several as a tuple.
nb::object object_from(const std::vector<Var>& vars);
/// Several always as a tuple.
nb::tuple tuple_from(const std::vector<Var>& vars);

}  // namespace millrace::python
