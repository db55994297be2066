// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/linear.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>

#include "support/built.h"

using namespace millrace;
using namespace millrace::testing;

TEST_CASE("PyTorch's weights, with and without bias, keep the LoD") {
  const Tensor weight = Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({3, 2});
  const LoDTensor x(Tensor::from<float>({1, 10, 2, 20}).reshape({2, 2}), LoD::from_lengths({{2, 0}}));
  const auto made = [&](const std::optional<Tensor>& bias) {
    return built(
        [&] {
          return layers::linear(build::input("x", VarType(DType::f32, {DDim::unknown, 2}, 1)), layers::linear_from_pytorch(weight, bias));
        },
        {{"x", x}});
  };
  CHECK(made({}).tensor().to_vector<float>() == std::vector<float>{21, 43, 65, 42, 86, 130});
  const LoDTensor y = made(Tensor::from<float>({100, 200, 300}));
  CHECK(y.tensor().to_vector<float>() == std::vector<float>{121, 243, 365, 142, 286, 430});
  CHECK(y.lod() == x.lod());
}

TEST_CASE("a bias of another width is refused by name") {
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {1, 2}));
  CHECK_THROWS_WITH_AS(layers::linear(x, {Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2}), Tensor::from<float>({1, 2, 3})}, "head"),
                       doctest::Contains("head, bias"), ShapeError);
}
