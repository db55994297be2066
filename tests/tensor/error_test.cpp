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
