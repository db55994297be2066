// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/error.h>

#include <stdexcept>
#include <string>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("every error is an Error, a runtime_error, and says what it was given") {
  try {
    throw ShapeError("matmul: expected 3 columns, found 4");
  } catch (const std::runtime_error& error) {
    CHECK(std::string(error.what()) == "matmul: expected 3 columns, found 4");
    CHECK(dynamic_cast<const Error*>(&error) != nullptr);
    CHECK(dynamic_cast<const DTypeError*>(&error) == nullptr);
  }
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
