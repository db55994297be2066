// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/importer.h>

/// Numbers of 8 bits, their scales and their zero points.
namespace millrace::importing {

bool is_byte(DType dtype);
/// UnsupportedError unless the elements are u8 or i8.
void expect_bytes(Importer& to, VarId x);

/// One number, or one for each index of `axis` of `x`, in the form that broadcasts.
VarId along_axis(Importer& to, VarId per, VarId x, std::int64_t axis);

/// round(x) + zero, within the 8 bits of `dtype`; `zero`: or `no_var`.
VarId narrowed_to_bytes(Importer& to, const Formula& f, VarId x, VarId zero, DType dtype);

/// (x − zero) · scale, in the dtype of the scale; `zero`: or `no_var`.
VarId dequantized(Importer& to, VarId x, VarId scale, VarId zero, std::int64_t axis);

/// Whether weights of 8 bits are known i8 without zero points: the ones that products of bytes take.
bool are_centred_bytes(Importer& to, const Node& node, std::size_t weights, std::size_t zero);

/// f32 where the sums of `terms` products of two 8-bit numbers are exact in it, else f64.
DType exact_sums(std::int64_t terms);

}  // namespace millrace::importing
