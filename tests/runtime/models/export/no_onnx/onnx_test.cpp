// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/export/onnx.h>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>

namespace millrace {
namespace {

TEST_CASE("A build without the part onnx says so when a program is to be written, and names the part") {
  Program program;
  program.set_title("net");
  CHECK_THROWS_WITH_AS(write_onnx("x.onnx", program), doctest::Contains("program 'net': writing ONNX needs the part onnx"),
                       UnsupportedError);
  CHECK_THROWS_AS(format_onnx(program), UnsupportedError);
}

}  // namespace
}  // namespace millrace
