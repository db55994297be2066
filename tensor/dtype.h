// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include <millrace/tensor/bfloat16.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/float16.h>

namespace millrace {

/// The element types. `boolean` is stored as one byte, 0 or 1.
enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, i8, u8, boolean };

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    default: return 1;
  }
}
constexpr bool is_floating(DType dtype) { return dtype <= DType::bf16; }
constexpr bool is_integer(DType dtype) { return dtype >= DType::i64 && dtype <= DType::u8; }

/// "f64", "f32", "f16", "bf16", "i64", "i32", "i8", "u8", "bool".
std::string_view name_of(DType dtype);
/// The dtype of that name. ParseError names the text and the known names.
DType dtype_named(std::string_view name);

template <class T>
struct DTypeOf;  // no member `value`: the C++ type has no dtype
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<bfloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};

template <class T>
inline constexpr DType dtype_of = DTypeOf<std::remove_cv_t<T>>::value;

/// Calls `f(std::type_identity<T>{})` with the C++ type of `dtype`.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return f(std::type_identity<double>{});
    case DType::f32: return f(std::type_identity<float>{});
    case DType::f16: return f(std::type_identity<float16>{});
    case DType::bf16: return f(std::type_identity<bfloat16>{});
    case DType::i64: return f(std::type_identity<std::int64_t>{});
    case DType::i32: return f(std::type_identity<std::int32_t>{});
    case DType::i8: return f(std::type_identity<std::int8_t>{});
    case DType::u8: return f(std::type_identity<std::uint8_t>{});
    case DType::boolean: return f(std::type_identity<bool>{});
  }
  throw DTypeError("dtype: the value is none of the known dtypes");
}

namespace detail {
/// Towards zero; a value that does not fit becomes the nearest that does, NaN becomes 0. (The language leaves these undefined.)
template <class To, class From>
constexpr To truncate(From from) {
  constexpr int digits = std::numeric_limits<To>::digits;
  constexpr From above = static_cast<From>(std::uint64_t{1} << (digits - 1)) * 2;  // one more than the largest To
  if (from != from) return To{0};
  if (from >= above) return std::numeric_limits<To>::max();
  if (from <= (std::is_signed_v<To> ? -above : From{0})) return std::numeric_limits<To>::min();
  return static_cast<To>(from);
}
}  // namespace detail

/// Converts one element by value; floats narrow through f32 (f64 directly), to integers towards zero and saturating, to bool by `!= 0`.
/// Integers that do not fit wrap.
template <class To, class From>
constexpr To convert_element(From from) {
  constexpr bool narrow_from = std::is_same_v<From, float16> || std::is_same_v<From, bfloat16>;
  constexpr bool narrow_to = std::is_same_v<To, float16> || std::is_same_v<To, bfloat16>;
  if constexpr (std::is_same_v<To, From>)
    return from;
  else if constexpr (narrow_from)
    return convert_element<To>(static_cast<float>(from));
  else if constexpr (narrow_to)
    return To(static_cast<float>(from));
  else if constexpr (std::is_same_v<To, bool>)
    return from != From{};
  else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>)
    return detail::truncate<To>(from);
  else
    return static_cast<To>(from);
}

}  // namespace millrace
