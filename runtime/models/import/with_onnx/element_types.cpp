// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/element_types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <millrace/runtime/files/internal/elements.h>
#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/tensor_proto.h>

namespace millrace::importing {
namespace {

using Kind = ElementRule::Kind;

// The numbers of types that Debian's onnx.proto does not name yet.
constexpr ElementType types[] = {
    {.onnx = 4, .name = "uint16", .held = DType::i32, .bits = 16, .is_signed = false},
    {.onnx = 5, .name = "int16", .held = DType::i32, .bits = 16},
    {.onnx = 12, .name = "uint32", .held = DType::i64, .bits = 32, .is_signed = false},
    {.onnx = 13, .name = "uint64", .held = DType::i64, .bits = 64, .is_signed = false},
    {.onnx = wrapped_uint64, .name = "uint64", .held = DType::i64, .bits = 64, .is_signed = false},
    {.onnx = 17, .name = "float8e4m3fn", .held = DType::f32, .bits = 8, .mantissa = 3, .least_exponent = -6, .greatest = 448},
    {.onnx = 18,
     .name = "float8e4m3fnuz",
     .held = DType::f32,
     .bits = 8,
     .mantissa = 3,
     .least_exponent = -7,
     .greatest = 240,
     .unsigned_zero = true},
    {.onnx = 19,
     .name = "float8e5m2",
     .held = DType::f32,
     .bits = 8,
     .mantissa = 2,
     .least_exponent = -14,
     .greatest = 57344,
     .infinite = true},
    {.onnx = 20,
     .name = "float8e5m2fnuz",
     .held = DType::f32,
     .bits = 8,
     .mantissa = 2,
     .least_exponent = -15,
     .greatest = 57344,
     .unsigned_zero = true},
    {.onnx = 21, .name = "uint4", .held = DType::u8, .bits = 4, .is_signed = false},
    {.onnx = 22, .name = "int4", .held = DType::i8, .bits = 4},
    {.onnx = 23, .name = "float4e2m1", .held = DType::f32, .bits = 4, .mantissa = 1, .least_exponent = 0, .greatest = 6, .nan = false},
    {.onnx = 25, .name = "uint2", .held = DType::u8, .bits = 2, .is_signed = false},
    {.onnx = 26, .name = "int2", .held = DType::i8, .bits = 2},
};

constexpr ElementRule element_rules[] = {
    {"Identity", Kind::moves, 0, true},
    {"Reshape", Kind::moves, 0, true},
    {"Transpose", Kind::moves, 0, true},
    {"Squeeze", Kind::moves, 0, true},
    {"Unsqueeze", Kind::moves, 0, true},
    {"Flatten", Kind::moves, 0, true},
    {"Concat", Kind::moves, 0, true},
    {"Split", Kind::moves, 0, true},
    {"Slice", Kind::moves, 0, true},
    {"Gather", Kind::moves, 0, true},
    {"GatherElements", Kind::moves, 0, true},
    {"GatherND", Kind::moves, 0, true},
    {"Pad", Kind::moves, 0, true},
    {"Expand", Kind::moves, 0, true},
    {"Tile", Kind::moves, 0, true},
    {"Compress", Kind::moves, 0, true},
    {"Trilu", Kind::moves, 0, true},
    {"DepthToSpace", Kind::moves, 0, true},
    {"SpaceToDepth", Kind::moves, 0, true},
    {"ReverseSequence", Kind::moves, 0, true},
    {"Where", Kind::moves, 1, true},
    {"Range", Kind::moves},
    {"Max", Kind::moves},
    {"Min", Kind::moves},
    {"Clip", Kind::moves},
    {"ReduceMax", Kind::moves},
    {"ReduceMin", Kind::moves},
    {"ReduceMean", Kind::moves},
    {"Sign", Kind::moves},
    {"Relu", Kind::moves},
    {"Add", Kind::computes, 0, true},
    {"Sub", Kind::computes, 0, true},
    {"Mul", Kind::computes, 0, true},
    {"Sum", Kind::computes, 0, true},
    {"Neg", Kind::computes, 0, true},
    {"Abs", Kind::computes},
    {"Div", Kind::computes},
    {"Mod", Kind::computes},
    {"Pow", Kind::computes},
    {"ReduceSum", Kind::computes, 0, true},
    {"ReduceProd", Kind::computes, 0, true},
    {"ReduceL1", Kind::computes},
    {"ReduceSumSquare", Kind::computes, 0, true},
    {"MatMul", Kind::computes, 0, true},
    {"ScatterElements", Kind::computes},
    {"ScatterND", Kind::computes},
    {"CumSum", Kind::computes, 0, true},
    {"CumProd", Kind::computes, 0, true},
    {"BitShift", Kind::computes},
    {"BitwiseAnd", Kind::computes, 0, true},
    {"BitwiseOr", Kind::computes, 0, true},
    {"BitwiseXor", Kind::computes, 0, true},
    {"BitwiseNot", Kind::computes, 0, true},
    {"BitCast", Kind::reads, 0, true},
    {"Cast", Kind::reads},
    {"CastLike", Kind::reads},
    {"Equal", Kind::reads, 0, true},
    {"Less", Kind::reads},
    {"LessOrEqual", Kind::reads},
    {"Greater", Kind::reads},
    {"GreaterOrEqual", Kind::reads},
    {"Shape", Kind::reads, 0, true},
    {"Size", Kind::reads, 0, true},
    {"NonZero", Kind::reads, 0, true},
    {"IsNaN", Kind::reads},
    {"IsInf", Kind::reads},
    {"ArgMax", Kind::reads},
    {"ArgMin", Kind::reads},
    {"DequantizeLinear", Kind::reads},
    {"QuantizeLinear", Kind::reads},
    {"com.microsoft.DequantizeLinear", Kind::reads},
    {"com.microsoft.QuantizeLinear", Kind::reads},
};

VarId wrapped(Importer& to, VarId x, const ElementType& type) {
  if (type.bits == 64) return x;
  const auto literal = [&](std::int64_t value) { return to.literal(scalar_of(type.held, static_cast<double>(value))); };
  const std::int64_t count = std::int64_t{1} << type.bits;
  if (!type.is_signed) return to.emit1("mod", {x, literal(count)});
  const VarId moved = to.emit1("mod", {to.emit1("add", {x, literal(count / 2)}), literal(count)});
  return to.emit1("sub", {moved, literal(count / 2)});
}

/// |x| ≥ 0 with `bits` bits of mantissa, to nearest even: the bits of an f32 are rounded as an integer, and a carry goes into the exponent.
VarId rounded_mantissa(Importer& to, VarId size, int bits) {
  const std::int32_t unit = 1 << (23 - bits);
  const auto number = [&](std::int32_t value) { return to.literal(Tensor::scalar(value)); };
  const VarId all = to.emit1("bit_cast", {size}, {{"to", DType::i32}});
  const VarId odd = to.emit1("mod", {to.emit1("div", {all, number(unit)}), number(2)});
  const VarId half = to.emit1("add", {to.emit1("add", {all, number(unit / 2 - 1)}), odd});
  const VarId kept = to.emit1("mul", {to.emit1("div", {half, number(unit)}), number(unit)});
  return to.emit1("bit_cast", {kept}, {{"to", DType::f32}});
}

VarId rounded(Importer& to, VarId x, const ElementType& type, const Narrowing& how) {
  const Formula f(to, DType::f32);
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  // Infinity itself is beyond every range: its bits are not rounded.
  const VarId size = f.op("minimum", f.op("abs", x), static_cast<double>(std::numeric_limits<float>::max() / 2));
  const double unit = std::ldexp(1.0, type.least_exponent - type.mantissa);
  const VarId small = f.times(f.op("round", f.over(size, unit)), unit);
  const VarId near = f.where(f.op("less", size, std::ldexp(1.0, type.least_exponent)), small, rounded_mantissa(to, size, type.mantissa));
  const double beyond = how.saturate || !type.nan ? type.greatest : type.infinite ? infinity : nan;
  const VarId limited = f.where(f.op("greater", near, type.greatest), f.number(beyond), near);
  const VarId negative = f.op("less", x, 0.0);
  const VarId made = f.where(negative, f.op("neg", limited), limited);
  const VarId zeros = type.unsigned_zero ? f.plus(made, 0.0) : f.where(f.op("equal", x, 0.0), x, made);
  return f.where(to.emit1("is_nan", {x}), f.number(type.nan ? nan : 0), zeros);
}

// ---- elements of a file

/// The bit patterns of the elements: as raw bytes, or in the fields of the message; those of less than a byte share bytes, the first lowest.
std::vector<std::uint64_t> patterns(const onnx::TensorProto& proto, const ElementType& type, std::int64_t count, const std::string& where) {
  const auto size = static_cast<std::size_t>(count);
  const std::size_t bytes =
      type.bits >= 8 ? size * static_cast<std::size_t>(type.bits / 8) : (size * static_cast<std::size_t>(type.bits) + 7) / 8;
  const auto expect = [&](std::size_t found, std::size_t expected, const char* what) {
    if (found != expected)
      throw ParseError(where + ": expected " + std::to_string(expected) + " " + what + " for " + std::to_string(count) + " of " +
                       type.name + ", found " + std::to_string(found));
  };
  std::vector<std::uint64_t> found;
  if (type.bits >= 32 && !proto.has_raw_data()) {
    expect(static_cast<std::size_t>(proto.uint64_data_size()), size, "numbers");
    return {proto.uint64_data().begin(), proto.uint64_data().end()};
  }
  if (type.bits >= 8 && !proto.has_raw_data()) {
    expect(static_cast<std::size_t>(proto.int32_data_size()), size, "numbers");
    for (const std::int32_t value : proto.int32_data()) found.push_back(static_cast<std::uint32_t>(value));
    return found;
  }
  expect(proto.has_raw_data() ? proto.raw_data().size() : static_cast<std::size_t>(proto.int32_data_size()), bytes, "bytes");
  const auto byte = [&](std::size_t i) {
    return proto.has_raw_data() ? static_cast<std::uint64_t>(static_cast<unsigned char>(proto.raw_data()[i]))
                                : static_cast<std::uint64_t>(proto.int32_data(static_cast<int>(i)) & 0xff);
  };
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t bit = i * static_cast<std::size_t>(type.bits);
    std::uint64_t pattern = byte(bit / 8) >> (bit % 8);
    for (std::size_t k = 1; k < static_cast<std::size_t>(type.bits) / 8; ++k) pattern |= byte(bit / 8 + k) << (8 * k);
    found.push_back(pattern);
  }
  return found;
}

float float_of(std::uint64_t pattern, const ElementType& type) {
  const int exponents = type.bits - 1 - type.mantissa;
  const auto field = [&](int begin, int count) { return static_cast<int>((pattern >> begin) & ((std::uint64_t{1} << count) - 1)); };
  const int mantissa = field(0, type.mantissa), exponent = field(type.mantissa, exponents), top = (1 << exponents) - 1;
  const bool negative = field(type.bits - 1, 1) != 0;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  if (type.unsigned_zero && negative && mantissa == 0 && exponent == 0) return nan;
  if (type.nan && !type.unsigned_zero && exponent == top) {
    if (!type.infinite && mantissa == (1 << type.mantissa) - 1) return nan;
    if (type.infinite)
      return mantissa != 0 ? nan : negative ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  }
  const int unit = type.least_exponent - type.mantissa + std::max(exponent - 1, 0);
  const float size = std::ldexp(static_cast<float>(mantissa + (exponent > 0 ? 1 << type.mantissa : 0)), unit);
  return negative ? -size : size;
}

std::int64_t integer_of(std::uint64_t pattern, const ElementType& type, const std::string& where) {
  if (type.bits == 64) {
    if (pattern >> 63 != 0) throw UnsupportedError(where + ": expected uint64 below 9223372036854775808, found " + std::to_string(pattern));
    return static_cast<std::int64_t>(pattern);
  }
  const std::uint64_t count = std::uint64_t{1} << type.bits;
  const auto value = static_cast<std::int64_t>(pattern & (count - 1));
  return type.is_signed && value >= static_cast<std::int64_t>(count / 2) ? value - static_cast<std::int64_t>(count) : value;
}

}  // namespace

Tensor held_tensor(const onnx::TensorProto& proto, const ElementType& type, const std::string& where) {
  if (proto.data_location() == onnx::TensorProto::EXTERNAL)
    throw UnsupportedError(where + ": expected " + type.name + " inside the model's file, found it beside");
  const DDim dims = internal::file_dims({proto.dims().begin(), proto.dims().end()}, where);
  const std::vector<std::uint64_t> found = patterns(proto, type, dims.elements(), where);
  Tensor made(type.held, dims);
  visit_dtype(type.held, [&]<class T>(std::type_identity<T>) {
    T* to = made.mutable_data<T>();
    for (const std::uint64_t pattern : found)
      *to++ = type.is_float() ? convert_element<T>(float_of(pattern, type)) : convert_element<T>(integer_of(pattern, type, where));
  });
  return made;
}

const ElementType* held_type(int onnx) {
  for (const ElementType& type : types)
    if (type.onnx == onnx) return &type;
  return nullptr;
}

DType held_dtype(int onnx, const std::string& where) {
  const ElementType* type = held_type(onnx);
  return type == nullptr ? dtype_of_onnx(onnx, where) : type->held;
}

VarId narrowed(Importer& to, VarId x, const ElementType& type, const Narrowing& how) {
  return type.is_float() ? rounded(to, x, type, how) : wrapped(to, x, type);
}

const ElementRule* element_rule(std::string_view onnx) {
  for (const ElementRule& rule : element_rules)
    if (rule.onnx == onnx) return &rule;
  return nullptr;
}

}  // namespace millrace::importing
