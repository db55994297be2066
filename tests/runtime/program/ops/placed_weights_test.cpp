// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>

#include "support/program_runs.h"
#include "support/random.h"

using namespace millrace;
using namespace millrace::testing;
using build::Var;

TEST_CASE("weights that are packed when a program is compiled lie where the op runs") {
  Random random(1);
  const auto tensor = [&](const DDim& dims) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < dims.elements(); ++i) values.push_back(random.real());
    return Tensor::from(values, dims);
  };
  Program program;
  {
    const build::Guard guard(program);
    const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 3}));
    const Var h = build::input("h", VarType(DType::f32, {DDim::unknown, 4}));
    const auto weight = [&](const char* name, const DDim& dims) { return build::parameter(name, tensor(dims)); };
    const Var product = build::matmul(x, weight("w", {3, 4}));
    const Var sum = build::call1("gemm", {x, weight("g", {3, 4}), weight("b", {4})});
    const build::LstmState next = build::lstm_cell(x, {h, product}, weight("in", {3, 16}), weight("re", {4, 16}), weight("bias", {16}));
    build::output("y", product + sum + next.h * next.c);
    build::output("conv", build::conv1d(build::reshape(x, {1, 3, -1}), weight("taps", {2, 3, 2}), weight("tb", {2})));
  }
  everywhere(program, {{"x", tensor({5, 3})}, {"h", tensor({5, 4})}}, 30);
}
