// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_arithmetic.h>

#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/straight_program.h>

#include "support/random.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

constexpr std::int64_t rows = 5, width = 7;

/// A program over x [?, width] of f32.
template <class F>
Program program_of(F body) {
  Program program;
  const Guard guard(program);
  output("y", body(input("x", VarType(DType::f32, {DDim::unknown, width}))));
  return program;
}

std::vector<std::string> steps_of(const Program& program) {
  std::vector<std::string> found;
  for (const Op& op : program.block(0).ops)
    if (op.type != "constant") found.push_back(op.type == "arithmetic" ? op.attributes.get<std::string>("steps") : op.type);
  return found;
}

/// The ops after the rewriting, which must keep the bits.
std::vector<std::string> joined(const Program& program) {
  Program made = program;
  join_arithmetic(made);
  Random random(3);
  const Tensor x = random_tensor(random, {rows, width});
  const Tensor wanted = StraightProgram(program).run({x})[0].tensor().tensor().copy_to(CpuPlace{});
  const Tensor found = StraightProgram(made).run({x})[0].tensor().tensor().copy_to(CpuPlace{});
  REQUIRE(found.dims() == wanted.dims());
  CHECK(std::memcmp(found.raw(), wanted.raw(), wanted.bytes()) == 0);
  return steps_of(made);
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("a normalisation by known numbers becomes one op") {
  Random random(1);
  const Tensor mean = random_tensor(random, {width}), factor = random_tensor(random, {width});
  CHECK(joined(program_of([&](Var x) { return (x - parameter("m", mean)) * parameter("f", factor) + 1.0f; })) == Words{"sub mul add"});
}

TEST_CASE("steps on the second operand, bounds, squares and relu join") {
  CHECK(joined(program_of([](Var x) { return call1("relu", {1.0f - 2.0f / x}); })) == Words{"into from relu"});
  CHECK(joined(program_of([](Var x) { return call1("clip", {x, constant(-0.5f), constant(0.5f)}); })) == Words{"maximum minimum"});
  const Tensor bound = Tensor::from<float>({0.5f});  // of one element, along an axis
  CHECK(joined(program_of([&](Var x) { return call1("clip", {x, constant(-0.5f), parameter("bound", bound)}); })) ==
        Words{"maximum minimum"});
  CHECK(joined(program_of([](Var x) { return call1("pow", {x, constant(2.0f)}) * 3.0f; })) == Words{"square mul"});
  CHECK(joined(program_of([](Var x) {
          const Var y = x + 1.0f;
          return y * y;
        })) == Words{"add square"});
}

TEST_CASE("swish and GELU in parts become one op") {
  CHECK(joined(program_of([](Var x) { return x * call1("sigmoid", {x}); })) == Words{"sigmoid mul"});
  CHECK(joined(program_of([](Var x) { return x * (call1("erf", {x / 1.4142135f}) + 1.0f) * 0.5f; })) == Words{"div erf add mul mul"});
  CHECK(joined(program_of([](Var x) { return call1("exp", {tanh(x)}); })) == Words{"tanh exp"});
}

TEST_CASE("values that something else reads stay, and so does an op alone") {
  CHECK(joined(program_of([](Var x) {
          const Var y = x + 1.0f;
          return (y * 2.0f) * tanh(y);
        })) == Words{"add", "tanh", "mul mul"});
  CHECK(joined(program_of([](Var x) { return x * 2.0f; })) == Words{"mul"});
  Program shown;
  {
    const Guard guard(shown);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, width}));
    const Var y = x + 1.0f;
    output("z", y * 2.0f);
    output("y", y);
  }
  CHECK(joined(shown) == Words{"add", "mul"});
}

TEST_CASE("a copy that nobody else reads does not part a chain") {
  CHECK(joined(program_of([&](Var x) { return call1("relu", {call1("identity", {x * 2.0f})}) + 1.0f; })) == Words{"mul relu add"});
}

TEST_CASE("a value in fewer extents than the result is computed apart, and long chains take several ops") {
  Random random(2);
  const Tensor w = random_tensor(random, {width});
  CHECK(joined(program_of([&](Var x) {
          const Var sum = call1("reduce", {x}, {{"kind", std::string("sum")}, {"axes", std::vector<std::int64_t>{1}}, {"keepdims", true}});
          return (sum + 1.0f) * parameter("w", w) * 2.0f;
        })) == Words{"reduce", "add", "mul mul"});
  CHECK(joined(program_of([](Var x) {
          for (int i = 0; i < 11; ++i) x = x + 1.0f;
          return x;
        })) == Words{"add add add add add add add add add", "add add"});
}

TEST_CASE("a bound that adds an axis stays in front of a conversion to bytes that has it anyway") {
  CHECK(joined(program_of([](Var x) {
          const Var bounded = call1("minimum", {x, parameter("most", Tensor::from<float>({255.0f}).reshape({1, 1, 1}))});
          return call1("cast", {bounded}, {{"to", DType::u8}});
        })).size() == 1);
}

TEST_CASE("a layer norm in parts sums squares that are not written, and a mean over rows whose number nobody knows stays") {
  const auto mean = [](Var x, std::int64_t axis) {
    return call1("reduce", {x}, {{"kind", std::string("mean")}, {"axes", std::vector<std::int64_t>{axis}}, {"keepdims", true}});
  };
  CHECK(joined(program_of([&](Var x) {
          const Var centred = x - mean(x, -1);
          return centred / call1("sqrt", {mean(centred * centred, 1) + 1e-5f}) * 3.0f;
        })) == Words{"reduce", "sub", "reduce", "div add sqrt", "div mul"});
  CHECK(joined(program_of([&](Var x) { return mean(x * x, 0); })) == Words{"mul", "reduce"});
}

TEST_CASE("integers stay in their ops") {
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::i64, {DDim::unknown}));
    output("y", (x + constant(std::int64_t{1})) * constant(std::int64_t{2}));
  }
  join_arithmetic(program);
  CHECK(steps_of(program) == Words{"add", "mul"});
}

TEST_CASE("A formula of a byte by known numbers has the bits of one op after another") {
  std::vector<std::uint8_t> bytes(512);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7);
  const Tensor unsigned_bytes = Tensor::from(bytes, DDim{2, 256});
  const auto same = [&](DType from, DType to, const auto& body) {
    Program program;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(from, {DDim::unknown, 256}));
      output("y", call1("cast", {body(call1("cast", {x}, {{"to", DType::f32}}))}, {{"to", to}}));
    }
    Program made = program;
    join_arithmetic(made);
    REQUIRE(steps_of(made).size() == 1);
    Tensor x = unsigned_bytes;
    if (from == DType::i8) {
      x = Tensor(DType::i8, DDim{2, 256});
      std::memcpy(x.mutable_data<std::int8_t>(), bytes.data(), bytes.size());
    }
    const Tensor wanted = StraightProgram(program).run({x})[0].tensor().tensor(),
                 found = StraightProgram(made).run({x})[0].tensor().tensor();
    REQUIRE(found.dims() == wanted.dims());
    REQUIRE(found.dtype() == to);
    CHECK(std::memcmp(found.raw(), wanted.raw(), wanted.bytes()) == 0);
    return found;
  };
  for (const DType from : {DType::u8, DType::i8})
    for (const DType to : {DType::u8, DType::i8}) {
      same(from, to, [](Var x) { return call1("round", {call1("sigmoid", {(x - 128.0f) * 0.05f}) / 0.0041f}) - 5.0f; });
      same(from, to, [](Var x) { return call1("round", {call1("hard_swish", {(x - 3.0f) * 0.1f}) / 0.07f}) + 9.0f; });
    }
}
