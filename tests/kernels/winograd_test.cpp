// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/winograd.h>

#include <cmath>
#include <limits>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/cast.h>

namespace millrace::testing {
namespace {

/// A convolution that fits, its x and its weights.
struct Planes {
  Planes(Random& random, std::uint64_t seed) {
    desc.relu = random.coin();
    desc.axes = {{1, 1, random.between(0, 2), random.between(0, 2)}, {1, random.between(1, 2), random.between(0, 2), random.between(0, 2)}};
    const std::int64_t taps = random.between(1, 4), channels = random.between((24 + taps - 1) / taps, 70);
    x = random_tensor(random, DType::f32,
                      DDim{random.between(1, 3), channels, random.between(3, 19), random.between(7, seed % 4 == 0 ? 900 : 150)});
    w = random_tensor(random, DType::f32, DDim{random.between(8, 40), channels, 3, taps});
    bias = random_tensor(random, DType::f32, DDim{w.dim(0)});
    addend = random.coin() ? &bias : nullptr;
  }

  ConvDesc desc;
  Tensor x, w, bias;
  const Tensor* addend = nullptr;
};

/// The largest difference from the convolution in f64, beside the largest element.
double error(const Planes& planes, const Tensor& found, StreamRef stream) {
  const auto wide = [&](const Tensor& x) { return cast(x, DType::f64, stream); };
  const Tensor bias = planes.addend == nullptr ? planes.bias : wide(*planes.addend);
  const Tensor exact = conv(planes.desc, wide(planes.x), wide(planes.w), planes.addend == nullptr ? nullptr : &bias, stream);
  REQUIRE(found.dims() == exact.dims());
  const std::vector<float> got = found.to_vector<float>();
  const std::vector<double> wanted = exact.to_vector<double>();
  double worst = 0, most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::abs(got[i] - wanted[i]));
    most = std::max(most, std::abs(wanted[i]));
  }
  return most == 0 ? worst : worst / most;
}

}  // namespace

TEST_CASE("rows in fours are near the convolution in f64, with the same bits alone and on any threads") {
  CpuDevice one(1), two(2);
  for (const std::uint64_t seed : seeds(40)) {
    INFO("seed ", seed);
    Random random(seed);
    Planes planes(random, seed);
    const std::optional<WinogradWeights> weights = transform_winograd(planes.desc, planes.w);
    REQUIRE(weights.has_value());
    const Tensor out = conv(planes.desc, planes.x, *weights, planes.addend, one.stream(0));
    CHECK(error(planes, out, one.stream(0)) < 6e-6);
    CHECK(same_bits(out, conv(planes.desc, planes.x, *weights, planes.addend, two.stream(0))));
    const std::int64_t images = planes.x.dim(0);
    const Tensor last = conv(planes.desc, planes.x.rows(images - 1, images), *weights, planes.addend, one.stream(0));
    CHECK(same_bits(last, clone(out.rows(images - 1, images), one.stream(0))));
  }
}

TEST_CASE("each instruction set gives the same bits") {
  CpuDevice device(1);
  Random random(3);
  Planes planes(random, 3);
  const WinogradWeights weights = *transform_winograd(planes.desc, planes.w);
  const Tensor wanted = conv(planes.desc, planes.x, weights, &planes.bias, device.stream(0));
  each_instruction_set([&](const std::string& name) {
    const Tensor found = conv(planes.desc, planes.x, weights, &planes.bias, device.stream(0));
    // Without a fused multiply-add sums round otherwise.
    if (name.starts_with("AVX"))
      CHECK(same_bits(found, wanted));
    else
      CHECK(error(planes, found, device.stream(0)) < 6e-6);
  });
}

TEST_CASE("an image with an element that is too large has the bits of conv, and others do not notice") {
  CpuDevice device(1);
  Random random(5);
  for (const float large : {1e30f, -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    CAPTURE(large);
    ConvDesc desc;
    desc.axes = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    Tensor x = random_tensor(random, DType::f32, DDim{3, 16, 9, 20});
    const Tensor w = random_tensor(random, DType::f32, DDim{8, 16, 3, 3});
    const WinogradWeights weights = *transform_winograd(desc, w);
    const Tensor before = conv(desc, x, weights, nullptr, device.stream(0));
    x.mutable_data<float>()[16 * 9 * 20 + 77] = large;
    const Tensor out = conv(desc, x, weights, nullptr, device.stream(0));
    const Tensor exact = conv(desc, x, w, nullptr, device.stream(0));
    for (const std::int64_t image : {0, 1, 2})
      CHECK(same_bits(clone(out.rows(image, image + 1), device.stream(0)),
                      clone((image == 1 ? exact : before).rows(image, image + 1), device.stream(0))));
  }
}

TEST_CASE("few rows, and weights that are too large, are left to dot products") {
  CpuDevice device(1);
  Random random(6);
  ConvDesc desc;
  desc.axes = {{1, 1, 1, 1}, {1, 1, 0, 0}};
  const Tensor x = random_tensor(random, DType::f32, DDim{2, 24, 2, 9});
  Tensor w = random_tensor(random, DType::f32, DDim{8, 24, 3, 1});
  CHECK(same_bits(conv(desc, x, *transform_winograd(desc, w), nullptr, device.stream(0)), conv(desc, x, w, nullptr, device.stream(0))));
  w.mutable_data<float>()[5] = std::numeric_limits<float>::infinity();
  CHECK(!transform_winograd(desc, w));
  CHECK(!fits_winograd(desc, DType::f64, w.dims()));
  desc.axes[0].stride = 2;
  CHECK(!fits_winograd(desc, DType::f32, w.dims()));
}

TEST_CASE("arithmetic behind rows in fours has the bits of a pass of its own, also where an image is left to dot products") {
  CpuDevice one(1), two(2);
  for (const std::uint64_t seed : seeds(12)) {
    INFO("seed ", seed);
    Random random(seed);
    const Planes planes(random, seed);
    const auto weights = transform_winograd(planes.desc, planes.w);
    REQUIRE(weights);
    const Tensor x = clone(planes.x, one.stream(0));
    if (random.coin()) x.rows(0, 1).reshape(DDim{-1}).mutable_data<float>()[5] = std::numeric_limits<float>::infinity();
    const Tensor plain = conv(planes.desc, x, *weights, planes.addend, one.stream(0));
    ConvSteps steps{{ArithmeticStep::prelu, ArithmeticStep::add, ArithmeticStep::mul, ArithmeticStep::minimum},
                    {random_tensor(random, DType::f32, DDim{planes.w.dim(0), 1, 1}), random_tensor(random, DType::f32, plain.dims()),
                     std::nullopt, random_tensor(random, DType::f32, DDim{})}};
    const Tensor expected = take_steps(steps, plain, one.stream(0));
    CHECK(same_bits(conv(planes.desc, x, *weights, planes.addend, one.stream(0), steps), expected));
    CHECK(same_bits(conv(planes.desc, x, *weights, planes.addend, two.stream(0), steps), expected));
  }
}

}  // namespace millrace::testing
