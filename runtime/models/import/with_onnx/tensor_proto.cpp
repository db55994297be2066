// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/tensor_proto.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include <millrace/runtime/files/internal/elements.h>
#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/models/import/with_onnx/element_types.h>
#include <millrace/tensor/checked.h>

namespace millrace::importing {
namespace {

using onnx::TensorProto;

/// A 16-bit pattern, as int32_data holds halves.
template <class T>
T from_field(std::int32_t value, const std::string& where) {
  if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    return T::from_bits(checked_cast<std::uint16_t>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    if (value != 0 && value != 1) throw ParseError(where + ": expected bools of 0 or 1, found " + std::to_string(value));
    return value != 0;
  } else {
    return checked_cast<T>(value);
  }
}

template <class T>
T from_field(std::int64_t value, const std::string&) {
  return static_cast<T>(value);
}
template <class T>
T from_field(float value, const std::string&) {
  return static_cast<T>(value);
}
template <class T>
T from_field(double value, const std::string&) {
  return static_cast<T>(value);
}

template <class T, class Field>
Tensor from_fields(const Field& field, const DDim& dims, const std::string& where) {
  if (std::cmp_not_equal(field.size(), dims.elements()))
    throw ParseError(where + ": expected " + std::to_string(dims.elements()) + " values for " + dims.to_string() + ", found " +
                     std::to_string(field.size()));
  Tensor made(dtype_of<T>, dims);
  T* to = made.mutable_data<T>();
  for (const auto value : field) *to++ = from_field<T>(value, where);
  return made;
}

Tensor from_typed_fields(const TensorProto& proto, DType dtype, const DDim& dims, const std::string& where) {
  switch (dtype) {
    case DType::f64: return from_fields<double>(proto.double_data(), dims, where);
    case DType::f32: return from_fields<float>(proto.float_data(), dims, where);
    case DType::f16: return from_fields<float16>(proto.int32_data(), dims, where);
    case DType::bf16: return from_fields<bfloat16>(proto.int32_data(), dims, where);
    case DType::i64: return from_fields<std::int64_t>(proto.int64_data(), dims, where);
    case DType::i32: return from_fields<std::int32_t>(proto.int32_data(), dims, where);
    case DType::i8: return from_fields<std::int8_t>(proto.int32_data(), dims, where);
    case DType::u8: return from_fields<std::uint8_t>(proto.int32_data(), dims, where);
    case DType::boolean: return from_fields<bool>(proto.int32_data(), dims, where);
  }
  throw DTypeError(where + ": the dtype is none of the known ones");
}

std::int64_t number(const std::string& text, const std::string& where) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    throw ParseError(where + ": expected offset and length of external data to be numbers, found " + internal::printable(text));
  return value;
}

Tensor from_external(const TensorProto& proto, DType dtype, const DDim& dims, Source& source, const std::string& where) {
  std::string location;
  std::int64_t offset = 0;
  std::int64_t length = -1;
  for (const onnx::StringStringEntryProto& entry : proto.external_data()) {
    if (entry.key() == "location") location = entry.value();
    if (entry.key() == "offset") offset = number(entry.value(), where);
    if (entry.key() == "length") length = number(entry.value(), where);
  }
  const std::int64_t needed = checked_mul(dims.elements(), static_cast<std::int64_t>(size_of(dtype)));
  if (length >= 0 && length != needed)
    throw ParseError(where + ": expected " + std::to_string(needed) + " bytes of external data for " + std::string(name_of(dtype)) +
                     dims.to_string() + ", found " + std::to_string(length));
  return source.external(location, offset, dtype, dims, where);
}

}  // namespace

DType dtype_of_onnx(int element_type, const std::string& where) {
  switch (element_type) {
    case TensorProto::DOUBLE: return DType::f64;
    case TensorProto::FLOAT: return DType::f32;
    case TensorProto::FLOAT16: return DType::f16;
    case TensorProto::BFLOAT16: return DType::bf16;
    case TensorProto::INT64: return DType::i64;
    case TensorProto::INT32: return DType::i32;
    case TensorProto::INT8: return DType::i8;
    case TensorProto::UINT8: return DType::u8;
    case TensorProto::BOOL: return DType::boolean;
    default: break;
  }
  static constexpr const char* names[] = {"undefined", "float",  "uint8",     "int8",       "uint16",  "int16",
                                          "int32",     "int64",  "string",    "bool",       "float16", "double",
                                          "uint32",    "uint64", "complex64", "complex128", "bfloat16"};
  const bool named = element_type >= 0 && std::cmp_less(element_type, std::size(names));
  throw UnsupportedError(where + ": expected elements of f64 f32 f16 bf16 i64 i32 i8 u8 or bool, found ONNX type " +
                         (named ? names[element_type] : std::to_string(element_type)));
}

/// Lists and optionals do not remember a type that has no dtype.
static void expect_dtype(const onnx::TypeProto& type, const std::string& where) {
  if (type.has_tensor_type()) dtype_of_onnx(type.tensor_type().elem_type(), where);
}

VarType type_of_onnx(const onnx::TypeProto& type, const std::string& where) {
  if (type.has_optional_type()) {
    expect_dtype(type.optional_type().elem_type(), where);
    const VarType held = type_of_onnx(type.optional_type().elem_type(), where);
    if (held.is_optional()) throw UnsupportedError(where + ": expected an optional tensor or sequence, found an optional of an optional");
    return VarType::optional_of(held);
  }
  if (type.has_sequence_type()) {
    expect_dtype(type.sequence_type().elem_type(), where);
    const VarType element = type_of_onnx(type.sequence_type().elem_type(), where);
    if (!element.is_tensor()) throw UnsupportedError(where + ": expected a sequence of tensors, found one of other values");
    return VarType::list_of(element);
  }
  if (!type.has_tensor_type())
    throw UnsupportedError(where + ": expected a tensor, a sequence or an optional, found another type (a map or a sparse tensor)");
  const DType dtype = held_dtype(type.tensor_type().elem_type(), where);
  if (!type.tensor_type().has_shape()) return VarType::unranked(dtype);
  std::vector<std::int64_t> extents;
  for (const auto& dim : type.tensor_type().shape().dim())
    extents.push_back(dim.has_dim_value() && dim.dim_value() >= 0 ? dim.dim_value() : DDim::unknown);
  std::vector<std::int64_t> at_least = extents;
  std::replace(at_least.begin(), at_least.end(), DDim::unknown, std::int64_t{1});
  internal::file_dims(at_least, where);
  return VarType(dtype, make_ddim(extents));
}

std::vector<std::string> extents_of_onnx(const onnx::TypeProto& type) {
  std::vector<std::string> names;
  // A name that no line of text can hold names nothing.
  for (const auto& dim : type.tensor_type().shape().dim())
    names.push_back(internal::printable(dim.dim_param()) == "'" + dim.dim_param() + "'" ? dim.dim_param() : std::string());
  const bool named = std::any_of(names.begin(), names.end(), [](const std::string& name) { return !name.empty(); });
  return named ? names : std::vector<std::string>();
}

Tensor tensor_of_onnx(const TensorProto& proto, Source& source, const std::string& where) {
  const DType dtype = dtype_of_onnx(proto.data_type(), where);
  const DDim dims = internal::file_dims({proto.dims().begin(), proto.dims().end()}, where);
  if (proto.data_location() == TensorProto::EXTERNAL) return from_external(proto, dtype, dims, source, where);
  if (proto.has_raw_data()) return internal::from_bytes(dtype, dims, proto.raw_data(), where);
  return from_typed_fields(proto, dtype, dims, where);
}

}  // namespace millrace::importing
