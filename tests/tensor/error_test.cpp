// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/error.h>

#include <exception>
#include <string>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("every error is an Error, an exception, and says what it was given") {
  try {
    throw ShapeError("matmul: expected 3 columns, found 4");
  } catch (const std::exception& error) {
    CHECK(std::string(error.what()) == "matmul: expected 3 columns, found 4");
    CHECK(dynamic_cast<const Error*>(&error) != nullptr);
    CHECK(dynamic_cast<const ShapeError*>(&error) != nullptr);
    CHECK(dynamic_cast<const DTypeError*>(&error) == nullptr);
  }
}

TEST_CASE("an error learns on its way where it happened and keeps its type") {
  bool caught_as_shape = false;
  try {
    try {
      throw ShapeError("expected 3 columns, found 4");
    } catch (Error& error) {
      error.add_context(" in op matmul");
      throw;
    }
  } catch (const ShapeError& error) {
    caught_as_shape = true;
    CHECK(std::string(error.what()) == "expected 3 columns, found 4 in op matmul");
  }
  CHECK(caught_as_shape);
}

TEST_CASE("each of several who get an error gets an object of its own, of the same type") {
  const std::exception_ptr shared = std::make_exception_ptr(ShapeError("bad rows"));
  for (int i = 0; i < 2; ++i) {
    try {
      rethrow_own(shared);
    } catch (ShapeError& error) {
      error.add_context(" in op matmul");
      CHECK(std::string(error.what()) == "bad rows in op matmul");
    }
  }
  CHECK_THROWS_WITH_AS(std::rethrow_exception(shared), "bad rows", ShapeError);
  CHECK_THROWS_WITH_AS(rethrow_own(std::make_exception_ptr(Error("plain"))), "plain", Error);
  class Odd : public Error {
   public:
    Odd() : Error("odd") {}
  };
  CHECK_THROWS_AS(rethrow_own(std::make_exception_ptr(Odd())), Odd);  // its type cannot be copied, so it is shared
  CHECK_THROWS_AS(rethrow_own(std::make_exception_ptr(7)), int);
}

TEST_CASE("an error of one kind is not caught as another") {
  bool caught_as_shape = false;
  try {
    throw LoDError("lod");
  } catch (const ShapeError&) {
    caught_as_shape = true;
  } catch (const Error&) {
  }
  CHECK_FALSE(caught_as_shape);
}
