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

/// One side of a product of bytes, with what stands for 0 (or `no_var`), as far as they are known.
struct ByteFactor {
  VarId bytes = no_var, zero = no_var;
  const Tensor* known_bytes = nullptr;
  const Tensor* known_zero = nullptr;
  bool turned = false;
};
ByteFactor byte_factor(Importer& to, const Node& node, std::size_t bytes, std::size_t zero);
ByteFactor byte_factor(const Importer::Dequantized& from);
/// The sums of A · B as i32, plus `added` (i32 [n], or `no_var`), by `matmul_integer`; `no_var` where it does not take these: B is known, of rank 2, with one zero or one
/// for each column, and A has one zero.
VarId byte_sums(Importer& to, const ByteFactor& a, const ByteFactor& b, VarId added = no_var);

/// A product of two factors that a DequantizeLinear made as what it means: sums of bytes, which are exact, times both scales; `no_var` where `byte_sums` does not take them.
VarId dequantized_product(Importer& to, VarId a, VarId b, bool turned);

/// A Conv with its bias as such sums; `no_var` where its input and its weights, which are known, do not come from a DequantizeLinear with one scale, or one for each unit.
VarId dequantized_convolution(Importer& to, const Node& node);

/// The mean over all known axes from 2 on of what a DequantizeLinear made with one scale: a sum of bytes, which is exact, times the scale; `no_var` for another x, or one that is too
/// large for f32.
VarId dequantized_mean(Importer& to, VarId x);

/// f32 where the sums of `terms` products of two 8-bit numbers are exact in it, else f64.
DType exact_sums(std::int64_t terms);

}  // namespace millrace::importing
