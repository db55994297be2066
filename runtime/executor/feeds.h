// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace/runtime/program/value.h>
#include <millrace/runtime/program/var_type.h>

namespace millrace {

/// Compares the value that is fed to input `name` with the type that the program declares; of an array the slots that are written, and an array that knows
/// nothing of its slots takes the declared type. ArgumentError (another kind, or nothing), DTypeError, LoDError, ShapeError and UninitializedError (nothing ever
/// wrote the tensor) name the input. `run` does this for every input; `StraightProgram::run` leaves it to its caller. Thread-safe.
void check_feed(const std::string& name, const VarType& wanted, const Value& value);

}  // namespace millrace
