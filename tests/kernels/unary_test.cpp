// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/unary.h>

#include <doctest/doctest.h>

namespace millrace::testing {

TEST_CASE("each function has its name, and ONNX's default numbers") {
  CHECK(name_of(Unary::identity) == "identity");
  CHECK(name_of(Unary::is_inf) == "is_inf");
  CHECK(name_of(Unary::tanh) == "tanh");
  CHECK(name_of(Unary::gelu_tanh) == "gelu_tanh");
  CHECK(name_of(Unary::softsign) == "softsign");
  CHECK(name_of(Unary::clip) == "clip");
  CHECK(default_params(Unary::leaky_relu).alpha == 0.01);
  CHECK(default_params(Unary::hard_sigmoid).alpha == 0.2);
  CHECK(default_params(Unary::hard_sigmoid).beta == 0.5);
  CHECK(default_params(Unary::tanh).alpha == 0);
}

TEST_CASE("a function says which dtype it gives and which it does not take") {
  CHECK(result_dtype(Unary::exp, DType::bf16) == DType::bf16);
  CHECK(result_dtype(Unary::is_nan, DType::f64) == DType::boolean);
  CHECK(result_dtype(Unary::identity, DType::boolean) == DType::boolean);
  CHECK(result_dtype(Unary::relu, DType::i8) == DType::i8);
  CHECK_THROWS_AS(result_dtype(Unary::sigmoid, DType::i64), DTypeError);
  CHECK_THROWS_AS(result_dtype(Unary::abs, DType::boolean), DTypeError);
}

}  // namespace millrace::testing
