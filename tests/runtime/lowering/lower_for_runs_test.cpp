// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/lower_for_runs.h>

#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>

using namespace millrace;
using namespace millrace::build;

namespace {

using Ints = std::vector<std::int64_t>;

/// Maxima of two elements each, as the import of ONNX writes a pool, of x times a constant.
Program pooled() {
  Program program;
  const Guard guard(program);
  const Var factor = build::parameter("w", Tensor::from<float>({2})) + 1.0f;
  const Var x = input("x", VarType(DType::f32, DDim{1, 6})) * factor;
  const Var first = call1("slice", {x}, {{"starts", Ints{0}}, {"ends", Ints{-1}}, {"axes", Ints{1}}, {"steps", Ints{2}}});
  const Var second = call1(
      "slice", {x}, {{"starts", Ints{1}}, {"ends", Ints{std::numeric_limits<std::int64_t>::max()}}, {"axes", Ints{1}}, {"steps", Ints{2}}});
  output("y", call1("maximum", {first, second}));
  return program;
}

std::vector<std::string> ops_at(const Place& place) {
  Program program = pooled();
  lower_for_runs(program, place);
  std::vector<std::string> types;
  for (const Op& op : program.block(0).ops)
    if (op.type != "constant") types.push_back(op.type);
  return types;
}

}  // namespace

TEST_CASE("constants are folded, and windows become one op in host memory") {
  CHECK(ops_at(CpuPlace{}) == std::vector<std::string>{"mul", "pool"});
}

TEST_CASE("windows stay in parts on a device, whose kernels have no op for them") {
  CHECK(ops_at(CudaPlace{0}) == std::vector<std::string>{"mul", "slice", "slice", "maximum"});
}
