// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_convolutions.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/lowering/lower_for_runs.h>
#include <millrace/runtime/program/straight_program.h>

#include "support/random.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

using Ints = std::vector<std::int64_t>;
using Words = std::vector<std::string>;

/// A program over x f32[?, 6, ?].
template <class F>
Program program_of(F body) {
  Program program;
  const Guard guard(program);
  output("y", body(input("x", VarType(DType::f32, {DDim::unknown, 6, DDim::unknown}))));
  return program;
}

/// A causal convolution along one axis with so many units of random weights.
Var causal(Random& random, const Var& x, std::int64_t units, std::int64_t group = 1) {
  return call1("conv1d", {x, parameter("w", random_tensor(random, {units, 6 / group, 3})), parameter("b", random_tensor(random, {units}))},
               {{"pads", Ints{2, 0}}, {"group", group}});
}

Tensor result(const Program& program, const Tensor& x) {
  return StraightProgram(program).run({x})[0].tensor().tensor().copy_to(CpuPlace{});
}

/// The ops after the rewriting and the steps of arithmetic, which must keep the bits for few places and for many.
Words joined(const Program& program) {
  Program made = program;
  lower_for_runs(made, CpuPlace{});
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    const Tensor x = random_tensor(random, {random.between(1, 3), 6, random.coin() ? random.between(1, 9) : random.between(90, 200)});
    const Tensor wanted = result(program, x), found = result(made, x);
    REQUIRE(found.dims() == wanted.dims());
    CHECK(std::memcmp(found.raw(), wanted.raw(), wanted.bytes()) == 0);
  }
  Words words;
  for (const Op& op : made.block(0).ops)
    if (op.type != "constant") words.push_back(op.type + " " + op.attributes.get_or("steps", std::string()));
  return words;
}

}  // namespace

TEST_CASE("a convolution takes the function that alone reads it, with numbers and with a slope for each unit") {
  Random random(1);
  const auto behind = [&](const char* op, Attributes attributes = {}) {
    return joined(program_of([&](Var x) { return call1(op, {causal(random, x, 7)}, std::move(attributes)); }));
  };
  CHECK(behind("leaky_relu", {{"alpha", 0.2}}) == Words{"conv1d_arithmetic prelu"});
  CHECK(behind("elu") == Words{"conv1d_arithmetic elu"});
  CHECK(behind("hard_swish") == Words{"conv1d_arithmetic hard_swish"});
  CHECK(behind("hard_sigmoid") == Words{"conv1d_arithmetic mul add maximum minimum"});
  CHECK(behind("hard_sigmoid", {{"alpha", 0.0}}).back() == "hard_sigmoid ");
  CHECK(behind("gelu") == Words{"conv1d_arithmetic gelu"});
  CHECK(behind("gelu", {{"approximate", std::string("tanh")}}) == Words{"conv1d_arithmetic gelu_tanh"});
  CHECK(behind("relu") == Words{"conv1d_arithmetic relu"});
  CHECK(joined(program_of([&](Var x) { return call1("clip", {causal(random, x, 7), constant(0.0f), constant(6.0f)}); })) ==
        Words{"conv1d_arithmetic maximum minimum"});
  const Tensor slopes = random_tensor(random, {7, 1});
  CHECK(joined(program_of([&](Var x) { return call1("prelu", {causal(random, x, 7), parameter("s", slopes)}); })) ==
        Words{"conv1d_arithmetic prelu"});
}

TEST_CASE("arithmetic that reads a convolution twice, or another value of its extents, is part of it") {
  Random random(2);
  CHECK(joined(program_of([&](Var x) {
          const Var y = causal(random, x, 6);
          return y * call1("sigmoid", {y});
        })) == Words{"conv1d_arithmetic sigmoid mul"});
  CHECK(joined(program_of([&](Var x) {
          const Var y = causal(random, x, 6, 6);
          return y * (call1("erf", {y / 1.4142135f}) + 1.0f) * 0.5f;
        })) == Words{"conv1d_arithmetic div erf add mul mul"});
  const Words residual = joined(program_of([&](Var x) {
    const Var y = call1("relu", {causal(random, x, 6)});
    return call1("relu", {causal(random, y, 6) + y});
  }));
  REQUIRE(residual.size() == 2);
  CHECK(residual[1] == "conv1d_arithmetic add relu");
}

TEST_CASE("a convolution that something else reads stays, and so does one whose arithmetic has other extents") {
  Random random(3);
  CHECK(joined(program_of([&](Var x) {
          const Var y = causal(random, x, 6);
          return call1("concat", {call1("elu", {y}), y}, {{"axis", std::int64_t{1}}});
        })) == Words{"conv1d ", "elu ", "concat "});
  CHECK(joined(program_of([&](Var x) { return causal(random, x, 1) + parameter("p", random_tensor(random, {5, 1})); })) ==
        Words{"conv1d ", "add "});
}

TEST_CASE("the last places of a piece of a causal convolution with arithmetic have the bits of the whole") {
  for (const std::uint64_t seed : seeds(10)) {
    INFO("seed ", seed);
    Random random(seed);
    Program program = program_of([&](Var x) {
      const Var y = call1("prelu", {causal(random, x, 6), parameter("s", random_tensor(random, {6, 1}))});
      return call1("hard_swish", {causal(random, y, 6) + y});
    });
    lower_for_runs(program, CpuPlace{});
    const std::int64_t length = random.between(5, 200), begin = random.between(0, length - 5);
    const Tensor x = random_tensor(random, {1, 6, length}), piece = x.slice(2, begin, length).copy_to(CpuPlace{});
    const Tensor whole = result(program, x), part = result(program, piece);
    const std::int64_t seen = begin == 0 ? 0 : 4;  // places that see what is in front of the piece
    const Tensor wanted = whole.slice(2, begin + seen, length).copy_to(CpuPlace{}),
                 found = part.slice(2, seen, length - begin).copy_to(CpuPlace{});
    CHECK(std::memcmp(found.raw(), wanted.raw(), wanted.bytes()) == 0);
  }
}
