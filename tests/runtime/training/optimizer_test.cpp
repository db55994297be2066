// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/training/optimizer.h>
#include <millrace/tensor/kernel_floats.h>

using namespace millrace;
using namespace millrace::training;
using Kind = OptimizerOptions::Kind;

namespace {

/// One weight of one element over steps with these gradients.
double trained(const OptimizerOptions& options, double weight, const std::vector<double>& gradients, double rate = 0.1) {
  Optimizer optimizer(options);
  Tensors weights{{"w", Tensor::from<double>({weight})}};
  for (const double gradient : gradients) optimizer.update(weights, {{"w", Tensor::from<double>({gradient})}}, rate);
  return weights.at("w").item();
}

OptimizerOptions of(Kind kind) {
  OptimizerOptions options;
  options.kind = kind;
  return options;
}

}  // namespace

TEST_CASE("SGD with momentum, Nesterov's, and decay follow their formulas") {
  OptimizerOptions options = of(Kind::sgd);
  CHECK(trained(options, 1, {0.5, -2}) == doctest::Approx(1 - 0.05 + 0.2));
  options.momentum = 0.9;
  // b = 0.5, then 0.9·0.5 − 2 = −1.55
  CHECK(trained(options, 1, {0.5, -2}) == doctest::Approx(1 - 0.05 + 0.155));
  options.nesterov = true;
  // 0.5 + 0.45 = 0.95, then −2 + 0.9·(−1.55) = −3.395
  CHECK(trained(options, 1, {0.5, -2}) == doctest::Approx(1 - 0.095 + 0.3395));
  options = of(Kind::sgd);
  options.weight_decay = 0.2;
  CHECK(trained(options, 1, {0.5}) == doctest::Approx(1 - 0.07));
}

TEST_CASE("Adam's first steps are those of its formula, and AdamW decays beside them") {
  // m = 0.05, v = 0.00025: m̂ = 0.5, √v̂ = 0.5
  CHECK(trained(of(Kind::adam), 1, {0.5}) == doctest::Approx(1 - 0.1 * 0.5 / (0.5 + 1e-8)));
  // m = 0.045 − 0.2 = −0.155, v = 0.00024975 + 0.004 = 0.00424975
  const double second = 0.1 / (1 - 0.81) * -0.155 / (std::sqrt(0.00424975) / std::sqrt(1 - 0.999 * 0.999) + 1e-8);
  CHECK(trained(of(Kind::adam), 1, {0.5, -2}) == doctest::Approx(0.9 - second));
  OptimizerOptions options = of(Kind::adamw);
  options.weight_decay = 0.5;
  CHECK(trained(options, 1, {0.5}) == doctest::Approx(0.95 - 0.1));
  options.kind = Kind::adam;  // the decay is in the gradient: 1 after the first step's division
  CHECK(trained(options, 1, {0.5}) == doctest::Approx(0.9));
}

TEST_CASE("a weight of bf16 is narrowed from a master copy, which takes updates that the weight alone would lose") {
  Optimizer optimizer(of(Kind::sgd));
  Tensors weights{{"w", Tensor::from<bfloat16>({bfloat16(1.0f)})}};
  for (int step = 0; step < 100; ++step) optimizer.update(weights, {{"w", Tensor::from<bfloat16>({bfloat16(1.0f)})}}, 1e-3);
  CHECK(weights.at("w").item() == doctest::Approx(0.9).epsilon(0.01));
  CHECK(optimizer.state().at("w/master").item() == doctest::Approx(0.9));
}

TEST_CASE("copies that others hold keep their values, and a weight without gradient stays") {
  Optimizer optimizer(of(Kind::adam));
  const Tensor fixed = Tensor::from<float>({1, 2}).read_only();
  Tensors weights{{"a", fixed}, {"b", Tensor::from<float>({3})}};
  optimizer.update(weights, {{"a", Tensor::from<float>({1, 1})}}, 0.1);
  CHECK(fixed.to_vector<float>() == std::vector<float>{1, 2});
  CHECK(weights.at("b").item() == 3);
  const Tensors kept = weights;
  const std::vector<float> before = kept.at("a").to_vector<float>();
  optimizer.update(weights, {{"a", Tensor::from<float>({1, 1})}}, 0.1);
  CHECK(kept.at("a").to_vector<float>() == before);
  CHECK(weights.at("a").to_vector<float>() != before);
}

TEST_CASE("momenta of a weight without gradients fade to zeros, not to numbers on which a processor is slow") {
  for (const Kind kind : {Kind::sgd, Kind::adam, Kind::adamw}) {
    OptimizerOptions options = of(kind);
    options.beta2 = 0.9;
    if (kind == Kind::sgd) options.momentum = 0.9;
    Optimizer optimizer(options);
    Tensors weights{{"w", Tensor::from(std::vector<float>(20, 1.0f), DDim{20})}};
    for (int step = 0; step < 1000; ++step)
      optimizer.update(weights, {{"w", Tensor::from(std::vector<float>(20, step == 0 ? 1.0f : 0.0f), DDim{20})}}, 0.1);
    for (const auto& [name, kept] : optimizer.state()) {
      INFO(name);
      if (name.ends_with("/m") || name.ends_with("/v") || name.ends_with("/momentum"))
        CHECK((kept.to_vector<float>() == std::vector<float>(20, 0.0f)) == KernelFloats::flushes);
    }
  }
}

TEST_CASE("a restored optimizer goes on with the same bits") {
  for (const Kind kind : {Kind::sgd, Kind::adam, Kind::adamw}) {
    OptimizerOptions options = of(kind);
    if (kind == Kind::sgd) options.momentum = 0.9;
    options.weight_decay = 0.01;
    const auto step = [&](Optimizer& optimizer, Tensors& weights, int i) {
      optimizer.update(weights, {{"w", Tensor::from<float>({std::sin(static_cast<float>(i)), 1})}}, 0.01);
    };
    Optimizer whole(options), first(options), second(options);
    Tensors a{{"w", Tensor::from<float>({1, 2})}}, b{{"w", Tensor::from<float>({1, 2})}};
    for (int i = 0; i < 10; ++i) step(whole, a, i);
    for (int i = 0; i < 4; ++i) step(first, b, i);
    second.restore(first.state());
    for (int i = 4; i < 10; ++i) step(second, b, i);
    CHECK(a.at("w").to_vector<float>() == b.at("w").to_vector<float>());
    CHECK(second.steps() == 10);
  }
}

TEST_CASE("what does not fit is refused, and changes nothing") {
  Optimizer optimizer(of(Kind::adam));
  Tensors weights{{"a", Tensor::from<float>({1})}, {"b", Tensor::from<float>({1})}};
  CHECK_THROWS_WITH_AS(optimizer.update(weights, {{"a", Tensor::from<float>({1})}, {"c", Tensor::from<float>({1})}}, 0.1),
                       doctest::Contains("a weight 'c'"), ArgumentError);
  CHECK_THROWS_AS(optimizer.update(weights, {{"a", Tensor::from<double>({1})}}, 0.1), DTypeError);
  CHECK_THROWS_AS(optimizer.update(weights, {{"a", Tensor::from<float>({1, 2})}}, 0.1), ShapeError);
  CHECK_THROWS_AS(optimizer.update(weights, {}, std::nan("")), ArgumentError);
  CHECK_THROWS_WITH_AS(optimizer.update(weights, {{"a", Tensor::from<float>({1})}, {"b", Tensor(DType::f32, {1})}}, 0.1),
                       doctest::Contains("(optimizer, 'b')"), UninitializedError);
  CHECK(weights.at("a").item() == 1);
  CHECK(optimizer.steps() == 0);
  Tensors state = optimizer.state();
  state["w/momentum"] = Tensor::from<float>({1});
  CHECK_THROWS_WITH_AS(optimizer.restore(state), doctest::Contains("'w/momentum'"), ArgumentError);
  state = {{"steps", Tensor::scalar(std::int64_t{1})}, {"w/m", Tensor::from<float>({1})}};
  CHECK_THROWS_WITH_AS(optimizer.restore(state), doctest::Contains("the whole state of 'w'"), ArgumentError);
  OptimizerOptions options;
  options.beta1 = 1;
  CHECK_THROWS_AS(Optimizer{options}, ArgumentError);
  options = {};
  for (const auto& [epsilon, found] : std::vector<std::pair<double, std::string>>{{std::numeric_limits<double>::infinity(), "inf"},
                                                                                  {std::numeric_limits<double>::quiet_NaN(), "nan"},
                                                                                  {0, "0"},
                                                                                  {-1e-8, "-1e-08"},
                                                                                  {1e-60, "1e-60"},
                                                                                  {1e-39, "1e-39"}}) {
    options.epsilon = epsilon;
    const std::string what = "optimizer: expected a finite epsilon of at least 1.1754944e-38, the least normal f32, found " + found;
    CHECK_THROWS_WITH_AS(Optimizer{options}, what.c_str(), ArgumentError);
  }
}

TEST_CASE("a weight that is no longer like its state is refused before any weight has changed") {
  for (const Kind kind : {Kind::sgd, Kind::adam}) {
    OptimizerOptions options = of(kind);
    if (kind == Kind::sgd) options.momentum = 0.9;
    Optimizer optimizer(options);
    const auto update = [&](Tensors weights, const Tensors& gradients) { optimizer.update(weights, gradients, 0.1); };
    const Tensors two{{"a", Tensor::from<float>({1})}, {"w", Tensor::from<float>({1, 2})}};
    update(two, two);
    const Tensors before = optimizer.state();
    Tensors longer = two;
    longer["w"] = Tensor::from(std::vector<float>(1000, 1.0f), DDim{1000});
    CHECK_THROWS_WITH_AS(update(longer, longer), doctest::Contains("'w': expected a weight of the extents of its state, [2], found"),
                         ShapeError);
    Tensors wider = two;
    wider["w"] = Tensor::from<double>({1, 2});
    CHECK_THROWS_WITH_AS(update(wider, wider), doctest::Contains("'w': expected a weight that is computed in f32"), DTypeError);
    Tensors narrower = two;
    narrower["w"] = Tensor::from<bfloat16>({bfloat16(1.0f), bfloat16(2.0f)});
    CHECK_THROWS_WITH_AS(update(narrower, narrower), doctest::Contains("'w': expected a weight of f32 or f64"), DTypeError);
    for (const auto& [name, tensor] : optimizer.state()) CHECK(std::memcmp(tensor.raw(), before.at(name).raw(), tensor.bytes()) == 0);
  }
  // A state of one element for a weight of many.
  Optimizer optimizer(of(Kind::adam));
  const Tensor one = Tensor::from<float>({1}), steps = Tensor::scalar(std::int64_t{1});
  optimizer.restore({{"steps", steps}, {"w/steps", steps}, {"w/m", one}, {"w/v", one}});
  Tensors many{{"w", Tensor::from(std::vector<float>(1000, 1.0f), DDim{1000})}};
  CHECK_THROWS_AS(optimizer.update(many, Tensors(many), 0.1), ShapeError);
  const Tensor two = Tensor::from<float>({1, 2});
  CHECK_THROWS_WITH_AS(optimizer.restore({{"steps", steps}, {"w/steps", steps}, {"w/m", one}, {"w/v", two}}),
                       doctest::Contains("the same extents for 'w'"), ArgumentError);
  CHECK_THROWS_AS(optimizer.restore({{"steps", steps}, {"w/steps", steps}, {"w/m", two}, {"w/v", two}, {"w/master", one}}), ArgumentError);
  for (const std::int64_t count : {-1, 2}) {
    const Tensor other = Tensor::scalar(count);
    CHECK_THROWS_WITH_AS(optimizer.restore({{"steps", steps}, {"w/steps", other}, {"w/m", one}, {"w/v", one}}),
                         doctest::Contains("expected from 0 to 1 steps of 'w', found "), ArgumentError);
  }
  CHECK_THROWS_AS(optimizer.restore({{"steps", Tensor::scalar(INT64_MAX)}}), ArgumentError);
  const Tensor whole = Tensor::from<std::int64_t>({1});
  CHECK_THROWS_AS(optimizer.restore({{"steps", steps}, {"w/steps", steps}, {"w/m", whole}, {"w/v", whole}}), ArgumentError);
}

TEST_CASE("the master copy follows a value that somebody else gives a narrow weight") {
  Optimizer optimizer(of(Kind::sgd));
  Tensors weights{{"w", Tensor::from<bfloat16>({bfloat16(1.0f), bfloat16(1.0f)})}};
  const Tensors slope{{"w", Tensor::from<bfloat16>({bfloat16(1.0f), bfloat16(1.0f)})}};
  optimizer.update(weights, slope, 1e-3);
  weights["w"] = Tensor::from<bfloat16>({bfloat16(5.0f), bfloat16(5.0f)});
  optimizer.update(weights, slope, 1e-3);
  CHECK(optimizer.state().at("w/master").to_vector<float>() == std::vector<float>(2, 5.0f - 1e-3f));
}
