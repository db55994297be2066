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

/// Two directions beside one another, as exporters of ONNX write it; `left` and `right`: the extents of a row.
Program directions(const std::string& left, const std::string& right) {
  const std::string known = left == right ? left : "?";
  return parse_program(R"(millrace 1 "directions"
input "f" = f: f32[?, ?, )" +
                           left + R"(]
input "b" = b: f32[?, ?, )" +
                           right + R"(]
block { idx: 0 parent_idx: -1
  forward: f32[?, 1, ?, )" +
                           left + R"(] = unsqueeze(X=f) {axes=ints[1]}
  backward: f32[?, 1, ?, )" +
                           right + R"(] = unsqueeze(X=b) {axes=ints[1]}
  both: f32[?, 2, ?, )" + known +
                           R"(] = concat(Xs=[forward, backward]) {axis=1}
  beside: f32[?, ?, 2, )" + known +
                           R"(] = transpose(X=both) {perm=ints[0, 2, 1, 3]}
  y: f32[?, ?, )" + (known == "?" ? "?" : "8") +
                           R"(] = reshape(X=beside) {shape=ints[0, 0, -1]}
}
output "y" = y
)",
                       {});
}

bool has(const Program& program, const char* type) {
  const auto& ops = program.block(0).ops;
  return std::any_of(ops.begin(), ops.end(), [&](const Op& op) { return op.type == type; });
}

}  // namespace

TEST_CASE("directions of one known width are put beside one another by one concat, others as the views do it") {
  Program known = directions("4", "4");
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
