// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/straight_program.h>

#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/trace/tracer.h>

#include "support/program_runs.h"
#include "support/random.h"
#include "support/random_tensor.h"

using namespace millrace;
using millrace::testing::Random;
using millrace::testing::random_tensor;

namespace {

/// y = tanh(x · W + b) and z = y + y, with a shape that is computed of constants.
Program two_outputs(Random& random) {
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 3}));
  const build::Var w = build::constant(random_tensor(random, {3, 5}));
  const build::Var y = build::tanh(build::matmul(x, w) + build::constant(random_tensor(random, {5})));
  build::output("y", y);
  build::output("z", y + y);
  return program;
}

std::vector<std::byte> bytes_of(const Value& value) {
  const Tensor dense = value.tensor().tensor().copy_to(CpuPlace{});
  const auto* from = static_cast<const std::byte*>(dense.raw());
  return {from, from + dense.bytes()};
}

}  // namespace

TEST_CASE("a straight-line program gives the bits of a run, again and again, for any number of rows") {
  Random random(11);
  const Program program = two_outputs(random);
  const StraightProgram straight(program);
  const Executable executable(program);
  for (const std::int64_t rows : {1, 7, 0, 40}) {
    const Tensor x = random_tensor(random, {rows, 3});
    const std::vector<Value> found = straight.run({x});
    const RunResult wanted = testing::run_fifo(run(executable, {{"x", x}}));
    REQUIRE(found.size() == 2);
    CHECK(bytes_of(found[0]) == bytes_of(wanted.value("y")));
    CHECK(bytes_of(found[1]) == bytes_of(wanted.value("z")));
  }
}

TEST_CASE("a straight-line program refuses loops, and another number of inputs than it has") {
  Random random(12);
  const StraightProgram straight(two_outputs(random));
  CHECK_THROWS_WITH_AS(straight.run({}), doctest::Contains("expected 1 inputs, found 0"), ArgumentError);

  Program looping;
  {
    const build::Guard guard(looping);
    const build::Var x = build::input("x", VarType(DType::f32, {4}));
    build::output("y", build::fold([](const build::Var& sum, const build::Var& each) { return sum + each; }, x, build::constant(0.0F)));
  }
  CHECK_THROWS_WITH_AS(StraightProgram{looping}, doctest::Contains("expected a program without loops"), UnsupportedError);
}

TEST_CASE("an error of an op of a straight-line program says which op it was") {
  Program program;
  {
    const build::Guard guard(program);
    build::output("y", build::gather(build::input("x", VarType(DType::f32, {DDim::unknown, 2})),
                                     build::input("index", VarType(DType::i64, {DDim::unknown})), 0));
  }
  const StraightProgram straight(program);
  CHECK_THROWS_WITH(straight.run({Tensor::from<float>({1, 2}).reshape({1, 2}), Tensor::from<std::int64_t>({5})}),
                    doctest::Contains("op gather of block 0"));
}

TEST_CASE("any number of threads run one straight-line program at the same time, each with its own results and its own errors") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 2}));
    const build::Var index = build::input("index", VarType(DType::i64, {DDim::unknown}));
    build::output("y", build::tanh(build::gather(x, index, 0) * 0.5f) + 1.0f);
  }
  for (const int threads : {1, 2}) {
    const StraightProgram straight(program, make_cpu_device(threads, 4));
    const auto call = [&straight](float value, std::int64_t index) {
      return bytes_of(straight.run({Tensor::from<float>({value, 2 * value}).reshape({1, 2}), Tensor::from<std::int64_t>({index})}).at(0));
    };
    constexpr int callers = 4, calls = 2000;
    std::vector<std::vector<std::byte>> wanted;
    for (int i = 0; i < callers; ++i) wanted.push_back(call(static_cast<float>(i + 1), 0));
    std::vector<int> wrong(callers, 0), failed(callers, 0);
    std::vector<std::thread> all;
    for (int i = 0; i < callers; ++i)
      all.emplace_back([&, i] {
        const auto at = static_cast<std::size_t>(i);
        for (int n = 0; n < calls; ++n) {
          try {
            if (call(static_cast<float>(i + 1), i == 0 && n % 7 == 0 ? 5 : 0) != wanted[at]) ++wrong[at];
          } catch (const Error&) {
            ++failed[at];
          }
        }
      });
    for (std::thread& each : all) each.join();
    CHECK(wrong == std::vector<int>(callers, 0));
    CHECK(failed == std::vector<int>{(calls + 6) / 7, 0, 0, 0});
    CHECK(call(1, 0) == wanted[0]);
  }
}

TEST_CASE("a traced straight-line program records each op") {
  Random random(13);
  const StraightProgram straight(two_outputs(random));
  Tracer tracer;
  straight.run({random_tensor(random, {2, 3})}, &tracer);
  const std::string json = tracer.to_json();
  for (const char* op : {"matmul", "tanh", "add"}) CHECK(json.find(op) != std::string::npos);
}
