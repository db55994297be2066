// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/move_bytes.h>

#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/lowering/join_arithmetic.h>
#include <millrace/runtime/program/straight_program.h>

#include "support/random.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

using Words = std::vector<std::string>;

const DDim dims{2, 3, 4, 5};

Var floats_of(Var bytes, float zero, float scale) { return (call1("cast", {bytes}, {{"to", DType::f32}}) - zero) * scale; }
Var bytes_of(Var x, float scale, DType to = DType::u8) {
  return call1("cast", {call1("round", {x / scale}) + (to == DType::u8 ? 100.0f : -5.0f)}, {{"to", to}});
}

/// The ops of a program over two inputs of bytes after both passes, which keep the bits.
template <class F>
Words moved(F body) {
  Program program;
  {
    const Guard guard(program);
    const VarType bytes(DType::u8, dims);
    const Var a = input("a", bytes), b = input("b", bytes);
    body(a, b);
  }
  Program made = program;
  join_arithmetic(made);
  move_bytes(made);
  Random random(4);
  std::vector<Tensor> inputs;
  for (int i = 0; i < 2; ++i) {
    inputs.emplace_back(DType::u8, dims);
    for (std::int64_t at = 0; at < dims.elements(); ++at)
      inputs.back().mutable_data<std::uint8_t>()[at] = static_cast<std::uint8_t>(random.between(0, 255));
  }
  const auto wanted = StraightProgram(program).run({inputs[0], inputs[1]}), found = StraightProgram(made).run({inputs[0], inputs[1]});
  REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const Tensor x = wanted[i].tensor().tensor().copy_to(CpuPlace{}), y = found[i].tensor().tensor().copy_to(CpuPlace{});
    REQUIRE(x.dims() == y.dims());
    REQUIRE(x.dtype() == y.dtype());
    CHECK(std::memcmp(x.raw(), y.raw(), x.bytes()) == 0);
    CHECK(made.var(made.outputs()[i].var).type.dtype == x.dtype());
  }
  Words words;
  for (const Op& op : made.block(0).ops)
    if (op.type != "constant") words.push_back(op.type);
  return words;
}

}  // namespace

TEST_CASE("Pieces of a concatenation between floats of bytes and bytes are bytes, of scales of their own") {
  CHECK(moved([](Var a, Var b) {
          output("y", bytes_of(call1("concat", {floats_of(a, 3, 0.1f), floats_of(b, 130, 0.02f)}, {{"axis", std::int64_t{1}}}), 0.03f,
                               DType::i8));
        }) == Words{"arithmetic", "arithmetic", "concat"});
}

TEST_CASE("Moves behind one another are moves of bytes, and floats that something else reads stay beside them") {
  CHECK(moved([](Var a, Var b) {
          const Var x = floats_of(a, 3, 0.1f), index = constant(Tensor::from<std::int64_t>({0, 0, 1, 1, 2, 2, 3, 3}));
          const Var wide = call1("gather", {x, index}, {{"axis", std::int64_t{2}}});
          const Var turned = call1("transpose", {wide}, {{"perm", std::vector<std::int64_t>{0, 1, 3, 2}}});
          output("y", bytes_of(turned, 0.05f));
          output("z", bytes_of(call1("concat", {floats_of(b, 9, 0.5f), x}, {{"axis", std::int64_t{0}}}), 0.2f));
          output("x", x);
        }) == Words{"arithmetic", "arithmetic", "gather", "transpose", "arithmetic", "arithmetic", "concat"});
}

TEST_CASE(
    "Moves that leave elements out, that something else reads, or whose formulas have operands of several numbers stay moves of floats") {
  const Words three{"arithmetic", "slice", "arithmetic"};
  CHECK(moved([](Var a, Var) {
          const std::vector<std::int64_t> zero{0}, one{1}, axis{2};
          output("y", bytes_of(call1("slice", {floats_of(a, 3, 0.1f)}, {{"starts", zero}, {"ends", one}, {"axes", axis}}), 0.03f));
        }) == three);
  CHECK(moved([](Var a, Var) {
          const Var x = call1("transpose", {floats_of(a, 3, 0.1f)}, {{"perm", std::vector<std::int64_t>{1, 0, 2, 3}}});
          output("y", bytes_of(x, 0.03f));
          output("x", x);
        }) == Words{"arithmetic", "transpose", "arithmetic"});
  CHECK(moved([](Var a, Var) {
          const Var x = call1("cast", {a}, {{"to", DType::f32}}) * parameter("f", Tensor::from<float>({1, 2, 3, 4, 5}));
          output("y", bytes_of(call1("transpose", {x}, {{"perm", std::vector<std::int64_t>{1, 0, 2, 3}}}), 0.03f));
        }) == Words{"arithmetic", "transpose", "arithmetic"});
}
