// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include <millrace/tensor/dtype.h>

namespace millrace {

/// Appends the elements whose bytes those are (any alignment; what is no whole element is left out) to `text` as JSON values with commas between them: integers
/// exactly, booleans as true and false, floats as the shortest decimal that reads back as the same bits, also when it is read as f64 first. −0 is -0.0; what JSON
/// has no number for is the string "nan", "inf" or "-inf".
void append_json_values(std::string& text, DType dtype, std::span<const std::byte> elements);

}  // namespace millrace
