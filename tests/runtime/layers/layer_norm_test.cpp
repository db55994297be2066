// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/layer_norm.h>

#include <cmath>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>

#include "support/built.h"

using namespace millrace;
using namespace millrace::testing;

TEST_CASE("each row has mean 0 and variance 1 before scale and bias, and epsilon counts") {
  for (const double epsilon : {1e-5, 1e-3, 2.0}) {
    const std::vector<float> x{1, 2, 4, -3, 0, 6};
    const std::vector<float> scale{1, 2, 3};
    const std::vector<float> bias{.5, -1, 0};
    const LoDTensor fed(Tensor::from(x, {2, 3}), LoD::from_lengths({{1, 1}}));
    const LoDTensor y = built(
        [&] {
          return layers::layer_norm(build::input("x", VarType(DType::f32, {DDim::unknown, 3}, 1)),
                                    {Tensor::from(scale, {3}), Tensor::from(bias, {3})}, epsilon);
        },
        {{"x", fed}});
    CHECK(y.lod() == fed.lod());
    const std::vector<float> found = y.tensor().to_vector<float>();
    for (std::size_t row = 0; row < 2; ++row) {
      double mean = 0;
      double square = 0;
      for (std::size_t k = 0; k < 3; ++k) mean += x[row * 3 + k] / 3.0;
      for (std::size_t k = 0; k < 3; ++k) square += (x[row * 3 + k] - mean) * (x[row * 3 + k] - mean) / 3.0;
      for (std::size_t k = 0; k < 3; ++k)
        CHECK(found[row * 3 + k] ==
              doctest::Approx((x[row * 3 + k] - mean) / std::sqrt(square + epsilon) * scale[k] + bias[k]).epsilon(1e-5));
    }
  }
}

TEST_CASE("a bias of another width than the scale is refused") {
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {1, 2}));
  CHECK_THROWS_WITH_AS(layers::layer_norm(x, {Tensor::from<float>({1, 1}), Tensor::from<float>({1})}),
                       doctest::Contains("layer_norm, bias"), ShapeError);
}
