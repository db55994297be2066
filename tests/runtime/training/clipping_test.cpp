// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <doctest/doctest.h>

#include <millrace/runtime/training/clipping.h>

using namespace millrace;
using namespace millrace::training;

TEST_CASE("the norm is that of all tensors together") {
  const Tensors gradients{{"a", Tensor::from<float>({3, 0})}, {"b", Tensor::from<double>({4})}, {"none", Tensor::from<float>({})}};
  CHECK(global_norm(gradients) == doctest::Approx(5));
}

TEST_CASE("clipping by norm scales all tensors alike, and leaves those of others alone") {
  const Tensor a = Tensor::from<float>({3, 0}), b = Tensor::from<float>({4});
  Tensors gradients{{"a", a}, {"b", b}};
  CHECK(clip(gradients, {.norm = 2.5}) == doctest::Approx(5));
  CHECK(gradients.at("a")[DDim{0}] == doctest::Approx(1.5));
  CHECK(gradients.at("b")[DDim{0}] == doctest::Approx(2));
  CHECK(a[DDim{0}] == 3);
  CHECK(clip(gradients, {.norm = 100}) == doctest::Approx(2.5));
  CHECK(gradients.at("b")[DDim{0}] == doctest::Approx(2));
}

TEST_CASE("clipping by value comes first, and a number that is none stays one") {
  Tensors gradients{{"a", Tensor::from<float>({-7, 0.5f, 9})}};
  CHECK(clip(gradients, {.value = 1}) == doctest::Approx(1.5));
  CHECK(gradients.at("a").to_vector<float>() == std::vector<float>{-1, 0.5f, 1});
  Tensors broken{{"a", Tensor::from<float>({std::nanf(""), 9})}};
  CHECK(std::isnan(clip(broken, {.value = 1, .norm = 1})));
  CHECK(std::isnan(broken.at("a")[DDim{0}]));
}

TEST_CASE("bounds below 0 and integers are refused") {
  Tensors gradients{{"a", Tensor::from<std::int64_t>({1})}};
  CHECK_THROWS_AS(clip(gradients, {.value = -1}), ArgumentError);
  CHECK_THROWS_WITH_AS(clip(gradients, {}), doctest::Contains("'a': expected a floating dtype, found i64"), DTypeError);
}
