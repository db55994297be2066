// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/program.h>

#include "support/random.h"

namespace millrace::testing {

/// The standard ops and `any`: inputs X, B?, Xs..., whatever attributes, and outputs of the dtype and shape that its attributes say.
std::shared_ptr<const OpRegistry> ops_and_any();

/// A valid program over `ops_and_any`: nested loops and branches, arrays, weights and literals of every dtype, attributes of every type,
/// odd floats, strings and names, unknown extents and LoD. For what is done with programs as data; it is not meant to run.
Program random_program(Random& random);
/// Text with quotes, backslashes, control characters and UTF-8.
std::string random_text(Random& random);
/// A tensor with random bits.
Tensor random_bits(Random& random, DType dtype, const DDim& dims);

/// Empty when both hold the same vars, blocks, ops, attributes (by their bits) and ports; else the first difference.
std::string difference(const Program& a, const Program& b);

}  // namespace millrace::testing
