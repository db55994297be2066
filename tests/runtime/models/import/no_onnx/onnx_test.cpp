// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/onnx.h>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>

namespace millrace {
namespace {

TEST_CASE("A build without the part onnx says so and names the part") {
  CHECK_THROWS_WITH_AS(import_onnx("x.onnx"), doctest::Contains("x.onnx: reading ONNX needs the part onnx"), UnsupportedError);
  CHECK_THROWS_AS(parse_onnx("", "bytes"), UnsupportedError);
}

}  // namespace
}  // namespace millrace
