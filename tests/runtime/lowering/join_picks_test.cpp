// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_picks.h>

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>
#include <support/drive.h>
#include <support/random_tensor.h>

using namespace millrace;
using namespace millrace::build;

namespace {

/// Products of the rows at `places` of x, [T, N, 5] or [N, T, 5], with one matrix: gemm with its matrix turned around and a bias, or matmul.
Program picked(const std::vector<std::int64_t>& places, int axis, bool gemm, bool constant = true) {
  Program program;
  const Guard guard(program);
  testing::Random random(4);
  const std::int64_t any = DDim::unknown;
  const Var x = input("x", VarType(DType::f32, axis == 0 ? DDim{4, any, 5} : DDim{any, 4, 5}));
  const Var w = constant ? build::parameter("w", testing::random_tensor(random, {7, 5})) : input("w", VarType(DType::f32, DDim{7, 5}));
  const Var b = build::parameter("b", testing::random_tensor(random, {7}));
  const Var turned = call1("transpose", {w}, {{"perm", std::vector<std::int64_t>{1, 0}}});
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Var row = call1("gather", {x, build::constant(places[i])}, {{"axis", std::int64_t{axis - 3}}});
    const Var y = gemm ? call1("gemm", {row, w, b}, {{"alpha", 0.5}, {"beta", 2.0}, {"trans_b", true}}) : call1("matmul", {row, turned});
    output("y" + std::to_string(i), y);
  }
  return program;
}

std::ptrdiff_t products(const Program& program) {
  const auto& ops = program.block(0).ops;
  return std::count_if(ops.begin(), ops.end(), [](const Op& op) { return op.type == "gemm" || op.type == "matmul"; });
}

}  // namespace

TEST_CASE("products of places of one tensor with one matrix become one, with the bits of each alone") {
  testing::Random random(5);
  for (const int axis : {0, 1}) {
    for (const std::int64_t batch : {0, 1, 3}) {
      INFO("axis ", axis, ", batch ", batch);
      const Tensor x = testing::random_tensor(random, axis == 0 ? DDim{4, batch, 5} : DDim{batch, 4, 5});
      const std::vector<std::int64_t> places{2, 0, -1, 2};
      Program joined = picked(places, axis, true);
      join_picks(joined);
      CHECK(products(joined) == 1);
      const RunResult all = testing::run_fifo(run(joined, Feeds{{"x", x}}));
      for (std::size_t i = 0; i < places.size(); ++i) {
        const RunResult alone = testing::run_fifo(run(picked({places[i]}, axis, true), Feeds{{"x", x}}));
        CHECK(all["y" + std::to_string(i)].tensor().dims() == DDim{batch, 7});
        CHECK(testing::bytes_of(all["y" + std::to_string(i)].tensor()) == testing::bytes_of(alone["y0"].tensor()));
      }
    }
  }
}

TEST_CASE("places that a split or slices of one place give become one product, with the bits of each alone") {
  testing::Random random(6);
  using Ints = std::vector<std::int64_t>;
  for (const int axis : {0, 1}) {
    for (const bool by_split : {false, true}) {
      INFO("axis ", axis, by_split ? ", split" : ", slices");
      Program program;
      {
        const Guard guard(program);
        testing::Random numbers(4);
        const std::int64_t any = DDim::unknown;
        const Var x = input("x", VarType(DType::f32, axis == 0 ? DDim{4, any, 5} : DDim{any, 4, 5}));
        const Var w = build::parameter("w", testing::random_tensor(numbers, {5, 7}));
        std::vector<Var> pieces;
        if (by_split) pieces = split(x, axis, {1, 2, 1});
        if (!by_split)
          for (const std::int64_t place : {2, 0, -2})
            pieces.push_back(call1("slice", {x}, {{"starts", Ints{place}}, {"ends", Ints{place + 1}}, {"axes", Ints{axis - 3}}}));
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          if (by_split && i == 1) continue;  // of two places
          output("y" + std::to_string(i), call1("matmul", {call1("squeeze", {pieces[i]}, {{"axes", Ints{axis}}}), w}));
        }
      }
      Program joined = program;
      join_picks(joined);
      CHECK(products(joined) == 1);
      const Tensor x = testing::random_tensor(random, axis == 0 ? DDim{4, 3, 5} : DDim{3, 4, 5});
      const RunResult all = testing::run_fifo(run(joined, Feeds{{"x", x}})), apart = testing::run_fifo(run(program, Feeds{{"x", x}}));
      for (const Program::Port& port : program.outputs()) {
        CHECK(all[port.name].tensor().dims() == DDim{3, 7});
        CHECK(testing::bytes_of(all[port.name].tensor()) == testing::bytes_of(apart[port.name].tensor()));
      }
    }
  }
}

TEST_CASE("products of few places, of places that are none, and with a matrix that is no constant stay") {
  const auto left = [](Program program) {
    join_picks(program);
    return products(program);
  };
  CHECK(left(picked({2}, 0, true)) == 1);
  CHECK(left(picked({2, 2, 2}, 0, true)) == 3);
  CHECK(left(picked({0, 4}, 0, true)) == 2);
  CHECK(left(picked({0, 1}, 0, true)) == 1);
  CHECK(left(picked({0, 1, 2, 3}, 0, true, false)) == 4);
  CHECK(left(picked({0, 1, 2, 3}, 1, false)) == 4);  // its matrix is a constant behind fold_constants alone
}
