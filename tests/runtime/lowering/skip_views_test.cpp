// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/skip_views.h>

#include <algorithm>
#include <string>

#include <doctest/doctest.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/program/text.h>
#include <support/drive.h>

using namespace millrace;

namespace {

/// Two directions beside one another, as exporters of ONNX write it; `width` of a row of each, and of both.
Program directions(const std::string& width, const std::string& both) {
  std::string text = R"(millrace 1 "directions"
input "f" = f: f32[?, ?, W]
input "b" = b: f32[?, ?, W]
block { idx: 0 parent_idx: -1
  forward: f32[?, 1, ?, W] = unsqueeze(X=f) {axes=ints[1]}
  backward: f32[?, 1, ?, W] = unsqueeze(X=b) {axes=ints[1]}
  both: f32[?, 2, ?, W] = concat(Xs=[forward, backward]) {axis=1}
  beside: f32[?, ?, 2, W] = transpose(X=both) {perm=ints[0, 2, 1, 3]}
  y: f32[?, ?, 2W] = reshape(X=beside) {shape=ints[0, 0, -1]}
}
output "y" = y
)";
  for (std::size_t at = text.find('W'); at != std::string::npos; at = text.find('W')) {
    const bool twice = text[at - 1] == '2';
    text.replace(twice ? at - 1 : at, twice ? 2 : 1, twice ? both : width);
  }
  return parse_program(text, {});
}

bool has(const Program& program, const char* type) {
  const auto& ops = program.block(0).ops;
  return std::any_of(ops.begin(), ops.end(), [&](const Op& op) { return op.type == type; });
}

}  // namespace

TEST_CASE("directions of one known width are put beside one another by one concat, others as the views do it") {
  Program known = directions("4", "8");
  skip_views(known);
  CHECK(known.block(0).ops.back().type == "concat");
  const auto rows = [](std::int64_t width, float value) { return make_darray(DDim{2, 3, width}, value); };
  CHECK(testing::run_fifo(run(known, {{"f", rows(4, 1)}, {"b", rows(4, 2)}}))["y"].tensor().dims() == DDim{2, 3, 8});
  Program open = directions("?", "?");
  skip_views(open);
  CHECK(has(open, "transpose"));
  CHECK(testing::run_fifo(run(open, {{"f", rows(4, 1)}, {"b", rows(4, 2)}}))["y"].tensor().dims() == DDim{2, 3, 8});
  CHECK_THROWS_AS(testing::run_fifo(run(open, {{"f", rows(4, 1)}, {"b", rows(5, 2)}})), ShapeError);
}

TEST_CASE("a transpose or reshape that undoes the one before it goes, and one that does not stays") {
  const auto views = [](const std::string& ops, const std::string& type) {
    Program program = parse_program(R"(millrace 1 "views"
input "x" = x: f32[?, 2, 3]
block { idx: 0 parent_idx: -1
)" + ops + "  z: " + type + R"( = relu(X=y)
}
output "z" = z
)",
                                    {});
    skip_views(program);
    const auto& all = program.block(0).ops;
    const Tensor x = make_darray(DDim{4, 2, 3}, 1.0f);
    CHECK(testing::run_fifo(run(program, {{"x", x}}))["z"].tensor().elements() == 24);
    return all.back().inputs[0] == program.inputs()[0].var;
  };
  CHECK(views("  a: f32[2, ?, 3] = transpose(X=x) {perm=ints[1, 0, 2]}\n  y: f32[?, 2, 3] = transpose(X=a) {perm=ints[1, 0, 2]}\n",
              "f32[?, 2, 3]"));
  CHECK(views("  a: f32[3, ?, 2] = transpose(X=x) {perm=ints[2, 0, 1]}\n  y: f32[?, 2, 3] = transpose(X=a) {perm=ints[1, 2, 0]}\n",
              "f32[?, 2, 3]"));
  CHECK(!views("  a: f32[3, ?, 2] = transpose(X=x) {perm=ints[2, 0, 1]}\n  y: f32[2, 3, ?] = transpose(X=a) {perm=ints[2, 0, 1]}\n",
               "f32[2, 3, ?]"));
  CHECK(
      views("  a: f32[?, 6] = reshape(X=x) {shape=ints[0, 6]}\n  y: f32[?, 2, 3] = reshape(X=a) {shape=ints[0, 2, 3]}\n", "f32[?, 2, 3]"));
  CHECK(
      !views("  a: f32[?, 6] = reshape(X=x) {shape=ints[0, 6]}\n  y: f32[?, 3, 2] = reshape(X=a) {shape=ints[0, 3, 2]}\n", "f32[?, 3, 2]"));
  // Extents that a run has to check.
  CHECK(!views("  a: f32[1, ?] = reshape(X=x) {shape=ints[1, -1]}\n  y: f32[4, 2, 3] = reshape(X=a) {shape=ints[4, 2, 3]}\n",
               "f32[4, 2, 3]"));
  CHECK(!views("  a: f32[4, 6] = reshape(X=x) {shape=ints[4, 6]}\n  y: f32[?, 2, 3] = reshape(X=a) {shape=ints[-1, 2, 3]}\n",
               "f32[?, 2, 3]"));
}
