// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <millrace/runtime/models/import/with_onnx/importer.h>

/// ONNX's element types that have no dtype here: 16-bit and unsigned integers, integers of 2 and 4 bits, floats of 4 and 8 bits. A var holds their
/// numbers in a wider dtype, in which each number is exact, and the importer remembers the type; `Cast` and arithmetic round or wrap to it.
namespace millrace::importing {

struct ElementType {
  int onnx;          ///< TensorProto::DataType, or `wrapped_uint64`
  const char* name;  ///< ONNX's: "uint16"
  DType held;        ///< the dtype of a var that holds it
  int bits;
  bool is_signed = true;
  /// The bits of a float's mantissa, the exponent of its least normal number, and its greatest number.
  int mantissa = 0;
  int least_exponent = 0;
  double greatest = 0;
  bool infinite = false;       ///< has infinities
  bool unsigned_zero = false;  ///< has no −0: that pattern is NaN
  bool nan = true;

  bool is_float() const noexcept { return mantissa > 0; }
};

/// uint64 is held by its bits in i64. Below 2⁶³, as files and feeds are, the number is right; this is the type of what arithmetic gives, which
/// may be beyond: it may be computed with on, but not compared, divided or widened.
inline constexpr int wrapped_uint64 = -13;

/// Null where `onnx` has a dtype, or is no type of numbers.
const ElementType* held_type(int onnx);
/// The dtype of a var that holds elements of an ONNX type. UnsupportedError, with `where`, for strings and complex numbers.
DType held_dtype(int onnx, const std::string& where);

/// The elements of a tensor in a model as a tensor that holds them. Errors open with `where`; a uint64 beyond 2⁶³ is an UnsupportedError.
Tensor held_tensor(const onnx::TensorProto& proto, const ElementType& type, const std::string& where);

/// The result of Cast beyond the range of a float.
struct Narrowing {
  bool saturate = true;
};
/// `x`, numbers in the dtype `type.held`, rounded to nearest even (floats) or wrapped (integers) to numbers of `type`.
VarId narrowed(Importer& to, VarId x, const ElementType& type, const Narrowing& how = {});

/// The way in which an op takes inputs of such types.
struct ElementRule {
  enum class Kind {
    moves,     ///< outputs of the dtype of input `from` have its type
    computes,  ///< likewise, narrowed
    reads,     ///< outputs are of other types, or the rule of the op says which
  };
  const char* onnx;
  Kind kind;
  std::size_t from = 0;
  bool any_bits = false;  ///< right for numbers beyond 2⁶³, too
};
/// Null for an op that takes none.
const ElementRule* element_rule(std::string_view onnx);

}  // namespace millrace::importing
