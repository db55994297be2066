// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/dtype.h>

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("each dtype has a name, a size and a C++ type") {
  for (const DType dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i8, DType::u8, DType::boolean}) {
    CHECK(dtype_named(name_of(dtype)) == dtype);
    visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
      CHECK(dtype_of<T> == dtype);
      CHECK(size_of(dtype) == sizeof(T));
    });
  }
  CHECK(dtype_of<const float> == DType::f32);
  CHECK(name_of(DType::boolean) == "bool");
}

TEST_CASE("a name that no dtype has is an error that lists those there are") {
  CHECK_THROWS_WITH_AS(dtype_named("float"), doctest::Contains("float"), ParseError);
  CHECK_THROWS_WITH_AS(dtype_named(""), doctest::Contains("bf16"), ParseError);
}

TEST_CASE("floating and integer dtypes are told apart, bool is neither") {
  CHECK(is_floating(DType::bf16));
  CHECK_FALSE(is_floating(DType::i64));
  CHECK(is_integer(DType::u8));
  CHECK_FALSE(is_integer(DType::f64));
  CHECK_FALSE(is_integer(DType::boolean));
  CHECK_FALSE(is_floating(DType::boolean));
}

TEST_CASE("a value outside the enumeration is refused") {
  CHECK_THROWS_AS(visit_dtype(static_cast<DType>(99), []<class T>(std::type_identity<T>) {}), DTypeError);
}

TEST_CASE("elements convert between floating types by rounding once from f32") {
  CHECK(convert_element<float>(float16(0.5f)) == 0.5f);
  CHECK(convert_element<bfloat16>(1.0).bits == 0x3f80);
  CHECK(convert_element<float16>(bfloat16(3.0f)) == float16(3.0f));
  CHECK(convert_element<double>(0.1f) == static_cast<double>(0.1f));
}

TEST_CASE("to bool everything but zero is true, NaN too") {
  CHECK(convert_element<bool>(0.5f));
  CHECK(convert_element<bool>(float16(-1.0f)));
  CHECK(convert_element<bool>(std::nan("")));
  CHECK_FALSE(convert_element<bool>(-0.0));
  CHECK_FALSE(convert_element<bool>(std::int8_t{0}));
  CHECK(convert_element<float>(true) == 1.0f);
}

TEST_CASE("to integers floats go towards zero, saturate, and NaN becomes zero") {
  CHECK(convert_element<std::int32_t>(-2.9f) == -2);
  CHECK(convert_element<std::uint8_t>(255.9f) == 255);
  CHECK(convert_element<std::uint8_t>(256.0f) == 255);
  CHECK(convert_element<std::uint8_t>(-1.0f) == 0);
  CHECK(convert_element<std::uint8_t>(-0.5f) == 0);
  CHECK(convert_element<std::int8_t>(-128.9) == -128);
  CHECK(convert_element<std::int8_t>(float16(-1000.0f)) == -128);
  CHECK(convert_element<std::int32_t>(2147483648.0f) == std::numeric_limits<std::int32_t>::max());
  CHECK(convert_element<std::int64_t>(1e300) == std::numeric_limits<std::int64_t>::max());
  CHECK(convert_element<std::int64_t>(-std::numeric_limits<float>::infinity()) == std::numeric_limits<std::int64_t>::min());
  CHECK(convert_element<std::int64_t>(std::nanf("")) == 0);
  CHECK(convert_element<std::int64_t>(9007199254740991.0) == 9007199254740991);
}

TEST_CASE("integers that do not fit wrap") {
  CHECK(convert_element<std::uint8_t>(std::int32_t{257}) == 1);
  CHECK(convert_element<std::int8_t>(std::uint8_t{255}) == -1);
}
