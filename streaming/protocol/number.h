// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <millrace/tensor/dtype.h>

namespace millrace {

/// Appends the element at `at` (any alignment) to `text` as a JSON value: integers exactly, booleans as true and false, floats as the
/// shortest decimal that reads back as the same bits, also when it is read as f64 first. −0 is -0.0; what JSON has no number for is the
/// string "nan", "inf" or "-inf".
void append_json_value(std::string& text, DType dtype, const std::byte* at);

}  // namespace millrace
