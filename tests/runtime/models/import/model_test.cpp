// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/model.h>

#include <doctest/doctest.h>

#include <support/bytes.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/program/storage.h>
#include <millrace/runtime/program/text.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

Program doubling() {
  Program program;
  const VarId x = program.add_input("x", VarType(DType::f32, DDim{DDim::unknown, 2}));
  const VarId w = program.add_parameter("w", Tensor::from<float>(std::vector<float>{2, 0, 0, 2}, DDim{2, 2}));
  program.add_output("y", program.append(0, Op{"matmul", {x, w}, {}, {}, {}}, {"y"}).at(0));
  return program;
}

TEST_CASE("A stored program is loaded by its ending, and by its first bytes under another name") {
  const testing::ScratchFolder folder;
  save_program(doubling(), folder / "m.mr");
  CHECK(print(load_model(folder / "m.mr")) == print(doubling()));
  write_file(folder / "m.model", read_file(folder / "m.mr"));
  CHECK(print(load_model(folder / "m.model")) == print(doubling()));
}

TEST_CASE("What cannot be loaded is one line that names the file") {
  const testing::ScratchFolder folder;
  CHECK_THROWS_WITH_AS(load_model(folder / "none.mr"), doctest::Contains("none.mr"), IoError);
  CHECK_THROWS_WITH_AS(load_model(folder / "none"), doctest::Contains("none: cannot open"), IoError);
  write_file(folder / "bad.mr", "millrace 1 ???");
  CHECK_THROWS_WITH_AS(load_model(folder / "bad.mr"), doctest::Contains("bad.mr"), ParseError);
  write_file(folder / "bad.onnx", "\xff");
  CHECK_THROWS_WITH_AS(load_model(folder / "bad.onnx"), doctest::Contains("bad.onnx"), Error);
}

}  // namespace
}  // namespace millrace
