// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/lower_for_runs.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/text.h>

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

std::vector<std::string> types_of(const Program& program) {
  std::vector<std::string> types;
  for (const Op& op : program.block(0).ops)
    if (op.type != "constant") types.push_back(op.type);
  return types;
}

std::vector<std::string> ops_at(const Place& place) {
  Program program = pooled();
  lower_for_runs(program, place);
  return types_of(program);
}

/// The lowered ops of a block over the arrays a and b, of slots f32[?, 2], and x of f32[?, ?, 2].
std::vector<std::string> lowered(const std::string& ops, const std::string& y) {
  Program program = parse_program(R"(millrace 1 "layers"
input "x" = x: f32[?, ?, 2]
block { idx: 0 parent_idx: -1
  n: i64[] = constant() {value=i64[](3)}
  rows: i64[1] = constant() {value=i64[1](4)}
  a: array<f32[?, 2]> = tensor_array(Size=n, Extents=rows) {dtype=f32, shape=ints[-1, 2], name="a"}
  b: array<f32[?, 2]> = tensor_array(Size=n, Extents=rows) {dtype=f32, shape=ints[-1, 2], name="b"}
  f: f32[?, ?, 2] = tensor_array_stack(Array=a) {axis=0}
  g: f32[?, ?, 2] = tensor_array_stack(Array=b) {axis=0}
)" + ops + R"(}
output "y" = )" + y + "\n",
                                  {});
  lower_for_runs(program, CpuPlace{});
  std::vector<std::string> types = types_of(program);
  std::erase_if(types, [](const std::string& type) { return type.starts_with("tensor_array"); });
  return types;
}

TEST_CASE("rows of a recurrent layer that nothing reads are not packed, and last states that nothing reads are not looked up") {
  for (const bool rows : {true, false}) {
    Program program;
    {
      const Guard guard(program);
      DynamicRNN rnn;
      const Var x = input("x", VarType(DType::f32, {DDim::unknown, 2}, 1));
      std::optional<Var> state;
      {
        const auto block = rnn.block();
        const Var step = rnn.step_input(x), h = rnn.memory(DType::f32, {2});
        state = h;
        const Var next = tanh(step + h);
        rnn.update_memory(h, next);
        rnn.output(next);
      }
      const Var last = rnn.last(*state);
      output("y", rows ? rnn.outputs().at(0) : last);
    }
    lower_for_runs(program, CpuPlace{});
    const std::vector<std::string> types = types_of(program);
    CHECK(std::count(types.begin(), types.end(), "pack") == (rows ? 1 : 0));
    CHECK(std::count(types.begin(), types.end(), "last_rows") == (rows ? 0 : 1));
  }
}

}  // namespace

TEST_CASE("constants are folded, and windows become one op in host memory") {
  CHECK(ops_at(CpuPlace{}) == std::vector<std::string>{"mul", "pool"});
}

TEST_CASE("windows stay in parts on a device, whose kernels have no op for them") {
  CHECK(ops_at(CudaPlace{0}) == std::vector<std::string>{"mul", "slice", "slice", "maximum"});
}

TEST_CASE("a stack of slots that gets an axis of extent 1 and loses it again is the stack") {
  const std::string ops = R"(  u: f32[?, 1, ?, 2] = unsqueeze(X=f) {axes=ints[1]}
  s: f32[?, ?, 2] = squeeze(X=u) {axes=ints[1]}
)";
  CHECK(lowered(ops + "  y: f32[?, ?, 2] = tanh(X=s)\n", "y") == std::vector<std::string>{"tanh"});
  CHECK(lowered(ops, "s") == std::vector<std::string>{"identity"});
  CHECK(lowered(ops, "u") == std::vector<std::string>{"unsqueeze"});
}

TEST_CASE("directions that are joined along an axis of their own, which merges with the last one, are joined along the last axis") {
  const auto joined = [](const std::string& perm) {
    return lowered(R"(  u: f32[?, 1, ?, 2] = unsqueeze(X=f) {axes=ints[1]}
  v: f32[?, 1, ?, 2] = unsqueeze(X=g) {axes=ints[1]}
  both: f32[?, 2, ?, 2] = concat(Xs=[u, v]) {axis=1}
  turned: f32[?, ?, ?, 2] = transpose(X=both) {perm=ints[)" +
                       perm + R"(]}
  y: f32[?, ?, ?] = reshape(X=turned) {shape=ints[0, 0, -1]}
)",
                   "y");
  };
  CHECK(joined("0, 2, 1, 3") == std::vector<std::string>{"concat"});
  CHECK(joined("2, 0, 1, 3") == std::vector<std::string>{"unsqueeze", "unsqueeze", "concat", "transpose", "reshape"});
}

TEST_CASE("pure ops that nobody reads go, with the ops that they alone read") {
  const std::string unread = "  t: f32[?, ?, 2] = tanh(X=x)\n  u: f32[?, ?, 2] = sigmoid(X=t)\n";
  CHECK(lowered(unread + "  y: f32[?, ?, 2] = relu(X=x)\n", "y") == std::vector<std::string>{"relu"});
  CHECK(lowered(unread + "  y: f32[?, ?, 2] = relu(X=t)\n", "y") == std::vector<std::string>{"arithmetic"});
}
