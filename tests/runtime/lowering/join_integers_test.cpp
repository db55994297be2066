// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_integers.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/kernels/cast.h>
#include <millrace/kernels/conv_integer.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/lowering/drop_unread.h>
#include <millrace/runtime/lowering/join_arithmetic.h>
#include <millrace/runtime/lowering/lower_for_runs.h>
#include <millrace/runtime/program/straight_program.h>

#include "support/random.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

using Words = std::vector<std::string>;

Tensor whole(Random& random, DType dtype, const DDim& dims, std::int64_t low, std::int64_t high) {
  Tensor made(DType::f64, dims);
  for (std::int64_t i = 0; i < made.elements(); ++i) made.mutable_data<double>()[i] = static_cast<double>(random.between(low, high));
  CpuDevice device;
  return cast(made, dtype, device.stream(0)).copy_to(CpuPlace{});
}

/// The ops after the rewriting, which must keep the bits of y for bytes x.
Words joined(const DDim& dims, const std::function<Var(Var)>& body) {
  Program program;
  {
    const Guard guard(program);
    output("y", body(input("x", VarType(DType::u8, dims))));
  }
  Program made = program;
  take_integers(made);
  take_byte_sums(made);
  join_arithmetic(made);
  join_integers(made);
  drop_unread(made);
  Random random(5);
  const Tensor x = whole(random, DType::u8, dims, 0, 255);
  const Tensor wanted = StraightProgram(program).run({x})[0].tensor().tensor().copy_to(CpuPlace{});
  const Tensor found = StraightProgram(made).run({x})[0].tensor().tensor().copy_to(CpuPlace{});
  REQUIRE(found.dims() == wanted.dims());
  CHECK(std::memcmp(found.raw(), wanted.raw(), wanted.bytes()) == 0);
  Words words;
  for (const Op& op : made.block(0).ops)
    if (op.type != "constant") words.push_back(op.type);
  return words;
}

Var taken(Var x, DType dtype) { return call1("cast", {x}, {{"to", dtype}}); }

Var to_bytes(Var x) { return taken(call1("clip", {call1("round", {x}) + 3.0f, constant(0.0f), constant(255.0f)}), DType::u8); }

}  // namespace

TEST_CASE("the arithmetic behind a product of bytes takes as many operands as its steps, also none without zeros of weights") {
  const Tensor x = Tensor::from<std::uint8_t>({1, 2, 3, 4}, DDim{2, 2});
  const auto made = [](const std::string& steps, std::size_t operands, bool all) {
    Program program;
    const Guard guard(program);
    std::vector<Var> inputs{input("x", VarType(DType::u8, {2, 2})), parameter("z", Tensor::scalar(std::uint8_t{1})),
                            parameter("w", Tensor::from<std::int8_t>({1, 2, 3, 4}, DDim{2, 2}))};
    if (all) {
      inputs.push_back(parameter("wz", Tensor::from<std::int32_t>({0, 0})));
      inputs.push_back(parameter("added", Tensor::from<std::int32_t>({0, 0})));
    }
    for (std::size_t i = 0; i < operands; ++i) inputs.push_back(constant(2.0f));
    output("y", call1("integer_arithmetic", inputs, {{"steps", steps}}));
    return program;
  };
  CHECK(StraightProgram(made("square", 0, false)).run({x})[0].tensor().tensor().to_vector<float>() == std::vector<float>{9, 16, 121, 256});
  CHECK(StraightProgram(made("mul", 1, true)).run({x})[0].tensor().tensor().to_vector<float>() == std::vector<float>{6, 8, 22, 32});
  CHECK_THROWS_AS(made("mul", 0, false), ProgramError);
  CHECK_THROWS_AS(made("square", 1, true), ProgramError);
  CHECK_THROWS_AS(made("add add add add add add add add add add", 10, true), ProgramError);
}

TEST_CASE("a product of bytes and the arithmetic behind it become one op") {
  Random random(1);
  const Tensor w = whole(random, DType::i8, {6, 5}, -128, 127), zeros = whole(random, DType::i32, {5}, -9, 9);
  const Tensor factor = Tensor::from<float>({0.1f, 0.02f, -0.3f, 1e-3f, 0.5f});
  const auto sums = [&](Var x) {
    return taken(call1("matmul_integer", {x, parameter("z", Tensor::scalar(std::uint8_t{7})), parameter("w", w), parameter("wz", zeros)}),
                 DType::f32);
  };
  CHECK(joined({4, 6}, [&](Var x) { return to_bytes(call1("relu", {sums(x) * parameter("f", factor)})); }) == Words{"integer_arithmetic"});
  CHECK(joined({4, 6}, [&](Var x) { return sums(x) * 0.5f; }) == Words{"integer_arithmetic"});
  // Another operand of each row stands beside the sums.
  CHECK(joined({4, 6}, [&](Var x) { return sums(x) * parameter("rows", whole(random, DType::f32, {4, 1}, 1, 9)) + 1.0f; }) ==
        Words{"matmul_integer", "arithmetic"});
}

TEST_CASE("a convolution of bytes in floats becomes one of integers, with what follows") {
  if (!conv_integer_is_fast()) return;
  Random random(2);
  const auto conv = [&](Var x, const Tensor& w, DType dtype) {
    const Var centred = taken(x, dtype) - taken(parameter("z", Tensor::scalar(std::uint8_t{9})), dtype);
    return call1("conv1d", {centred, parameter("w", w)}, {{"stride", std::int64_t{2}}, {"pads", std::vector<std::int64_t>{1, 2}}});
  };
  const Tensor narrow = whole(random, DType::f32, {3, 4, 3}, -128, 127), wide = whole(random, DType::f64, {3, 4, 3}, -129, 120);
  const Tensor factor = Tensor::from<float>({0.1f, 0.02f, -0.3f}, DDim{1, 3, 1});
  const Tensor bias = whole(random, DType::f64, {1, 3, 1}, -100000, 100000);
  CHECK(joined({2, 4, 9}, [&](Var x) { return to_bytes(conv(x, narrow, DType::f32) * parameter("f", factor)); }) == Words{"conv_integer"});
  CHECK(joined({2, 4, 9}, [&](Var x) {
          return to_bytes(taken(conv(x, wide, DType::f64) + parameter("b", bias), DType::f32) * parameter("f", factor));
        }) == Words{"conv_integer"});
  CHECK(joined({2, 4, 9}, [&](Var x) { return taken(conv(x, wide, DType::f64), DType::i32); }).front() == "conv_integer");
  // Differences in f32 that are widened are those in f64.
  CHECK(joined({2, 4, 9}, [&](Var x) {
          const Var centred = taken(taken(x, DType::f32) - taken(parameter("z", Tensor::scalar(std::uint8_t{9})), DType::f32), DType::f64);
          return taken(call1("conv1d", {centred, parameter("w", wide)}), DType::i32);
        }).front() == "conv_integer");
  Program lowered;
  {
    const Guard guard(lowered);
    output("y", conv(input("x", VarType(DType::u8, {2, 4, 9})), narrow, DType::f32));
  }
  lower_for_runs(lowered, CpuPlace{});  // the floats that nothing reads any more are not made
  Words left;
  for (const Op& op : lowered.block(0).ops)
    if (op.type != "constant") left.push_back(op.type);
  CHECK(left == Words{"conv_integer", "cast"});
  // Weights that are no whole numbers, or sums that f32 rounds, stay.
  Tensor halves = narrow.copy_to(CpuPlace{});
  halves.mutable_data<float>()[5] = 0.5f;
  CHECK(joined({2, 4, 9}, [&](Var x) { return conv(x, halves, DType::f32); }).back() == "conv1d");
  CHECK(joined({1, 600, 9}, [&](Var x) { return conv(x, whole(random, DType::f32, {1, 600, 3}, 100, 127), DType::f32); }).back() ==
        "conv1d");
  // So does what is taken off in extents that nobody knows.
  Program open;
  const Guard guard(open);
  const Var means = input("means", VarType(DType::f32, {DDim::unknown, 1, 1}));
  output("y", call1("conv1d", {taken(input("x", VarType(DType::u8, {2, 4, 9})), DType::f32) - means, parameter("w", narrow)}));
  take_integers(open);
  CHECK(open.block(0).ops.back().type == "conv1d");
}

TEST_CASE("a sum of bytes over known last axes is taken in integers where floats hold it exactly") {
  const auto total = [](Var x, const std::vector<std::int64_t>& axes, const char* kind = "sum") {
    return call1("reduce", {x}, {{"kind", std::string(kind)}, {"axes", axes}, {"keepdims", true}});
  };
  const auto floats = [](Var x) { return taken(x, DType::f32); };
  CHECK(joined({2, 3, 5, 7}, [&](Var x) { return total(floats(x) - 7.0f, {2, 3}); }) == Words{"byte_sums"});
  CHECK(joined({2, 3, 5, 7}, [&](Var x) { return total(floats(x), {-1}) * 0.5f; }) == Words{"byte_sums", "mul"});
  CHECK(joined({2, 3, 5, 7}, [&](Var x) { return total(floats(x), {1, 3}); }) == Words{"cast", "reduce"});
  CHECK(joined({2, 3, 5, 7}, [&](Var x) { return total(floats(x) - 0.5f, {3}); }).back() == "reduce");
  CHECK(joined({2, 3, 5, 7}, [&](Var x) { return total(floats(x), {3}, "max"); }) == Words{"cast", "reduce"});
  CHECK(joined({1, 40000}, [&](Var x) { return total(floats(x), {1}); }) == Words{"cast", "reduce"});
}
