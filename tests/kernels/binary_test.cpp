// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/binary.h>

#include <doctest/doctest.h>

namespace millrace::testing {

TEST_CASE("each function of two elements has its name") {
  CHECK(name_of(Binary::add) == "add");
  CHECK(name_of(Binary::prelu) == "prelu");
  CHECK(name_of(Binary::equal) == "equal");
  CHECK(name_of(Binary::greater_equal) == "greater_equal");
  CHECK(name_of(Binary::logical_xor) == "logical_xor");
}

TEST_CASE("comparisons and logic give bool, arithmetic gives what it takes") {
  CHECK(result_dtype(Binary::add, DType::i8) == DType::i8);
  CHECK(result_dtype(Binary::less, DType::f16) == DType::boolean);
  CHECK(result_dtype(Binary::equal, DType::boolean) == DType::boolean);
  CHECK(result_dtype(Binary::tanh_gradient, DType::bf16) == DType::bf16);
  CHECK_THROWS_AS(result_dtype(Binary::less, DType::boolean), DTypeError);
  CHECK_THROWS_AS(result_dtype(Binary::sigmoid_gradient, DType::i32), DTypeError);
  CHECK_THROWS_AS(result_dtype(Binary::logical_or, DType::i32), DTypeError);
}

}  // namespace millrace::testing
