// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/unit_weights.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {

namespace {

/// A convolution drawn at random, with at most `taps` along an axis: its operands' extents, and those of a number for each unit.
struct RandomConv {
  ConvDesc desc;
  DType dtype;
  DDim x, weights, of_units;
  RandomConv(Random& random, bool is_wide, std::int64_t taps) {
    dtype = random.between(0, 3) == 0 ? DType::f64 : DType::f32;
    const int spatial = static_cast<int>(random.between(1, 3));
    desc.groups = random.between(1, 3);
    desc.relu = random.coin();
    const std::int64_t many = taps == 1 ? 600 : 150, channels = random.between(1, is_wide ? many : many / 10) + (taps == 1 ? 0 : 1);
    const std::int64_t units = desc.groups * random.between(16, 150);
    x = {random.between(0, 3), channels * desc.groups};
    weights = {units, channels};
    of_units = {units};
    for (int axis = 0; axis < spatial; ++axis) {
      const std::int64_t wide = random.between(1, taps), most_stride = taps == 1 ? 1 : 3, most_pad = taps == 1 ? 0 : 2;
      desc.axes.push_back({random.between(1, most_stride), random.between(1, 2), random.between(0, most_pad), random.between(0, most_pad)});
      x = x.inserted(axis + 2, random.between(1 + (wide - 1) * 2, 9));
      weights = weights.inserted(axis + 2, wide);
      of_units = of_units.inserted(axis + 1, 1);
    }
  }
};

/// Compares packed weights with plain ones, with `arithmetic(results)` behind them too.
template <class F>
void check_packed(const RandomConv& of, const Tensor& x, Random& random, CpuDevice& one, CpuDevice& two, F arithmetic) {
  const Tensor w = random_tensor(random, of.dtype, of.weights), bias = random_tensor(random, of.dtype, DDim{of.weights[0]});
  const Tensor* const addend = random.coin() ? &bias : nullptr;
  const std::optional<UnitWeights> packed = pack_units(of.desc, w, one.stream(0));
  REQUIRE(packed.has_value());
  const Tensor plain = conv(of.desc, x, w, addend, one.stream(0));
  CHECK(same_bits(conv(of.desc, x, *packed, addend, one.stream(0)), plain));
  CHECK(same_bits(conv(of.desc, x, *packed, addend, two.stream(0)), plain));
  const ConvSteps steps = arithmetic(plain);
  CHECK(same_bits(conv(of.desc, x, *packed, addend, two.stream(0), steps), take_steps(steps, plain, one.stream(0))));
}

}  // namespace

TEST_CASE("a convolution of one tap has the same bits by packed weights, with arithmetic behind it, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    for (const std::uint64_t seed : seeds(40)) {
      INFO("seed ", seed);
      Random random(seed);
      const RandomConv of(random, seed % 5 == 0, 1);
      std::vector<int> turn{1, 0};
      for (int axis = 2; axis < of.x.rank(); ++axis) turn.push_back(axis);
      DDim turned = of.x;
      std::swap(turned[0], turned[1]);
      const Tensor x = random.coin() ? random_tensor(random, of.dtype, of.x) : random_tensor(random, of.dtype, turned).permute(turn);
      check_packed(of, x, random, one, two, [&](const Tensor& plain) {
        ConvSteps steps{{ArithmeticStep::prelu, ArithmeticStep::mul, ArithmeticStep::add, ArithmeticStep::sigmoid},
                        {random_tensor(random, of.dtype, DDim{}), random_tensor(random, of.dtype, of.of_units), std::nullopt}};
        if (random.coin()) steps.operands.back() = random_tensor(random, of.dtype, random.coin() ? plain.dims() : DDim{plain.dim(-1)});
        return steps;
      });
    }
  });
}

TEST_CASE("a convolution of several taps has the same bits by packed weights, whatever its strides, dilations, pads and groups") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    for (const std::uint64_t seed : seeds(40)) {
      INFO("seed ", seed);
      Random random(seed);
      const RandomConv of(random, seed % 5 == 0, 3);
      const Tensor x = random_tensor(random, of.dtype, of.x);
      check_packed(of, x, random, one, two, [&](const Tensor& plain) {
        return ConvSteps{{ArithmeticStep::mul, ArithmeticStep::add, ArithmeticStep::sigmoid},
                         {random_tensor(random, of.dtype, of.of_units), random_tensor(random, of.dtype, plain.dims())}};
      });
    }
  });
}

TEST_CASE("zeros of the padding take part in sums of packed weights: those times infinity are NaN") {
  CpuDevice device(1);
  Tensor w(DType::f32, DDim{16, 1, 3, 2});
  std::fill_n(w.mutable_data<float>(), w.elements(), std::numeric_limits<float>::infinity());
  const ConvDesc desc{{{1, 1, 1, 1}, {1, 1, 0, 0}}, 1};
  const auto packed = pack_units(desc, w, device.stream(0));
  Tensor x(DType::f32, DDim{1, 1, 4, 4});
  std::fill_n(x.mutable_data<float>(), x.elements(), 1.0f);
  CHECK(same_bits(conv(desc, x, packed.value(), nullptr, device.stream(0)), conv(desc, x, w, nullptr, device.stream(0))));
}

TEST_CASE("weights of few units, depthwise ones and those of other types are not packed") {
  CpuDevice device(1);
  Random random(2);
  const auto packed = [&](const ConvDesc& desc, const DDim& weights, DType dtype = DType::f32) {
    return pack_units(desc, random_tensor(random, dtype, weights), device.stream(0)).has_value();
  };
  CHECK(packed({{{}, {}}, 1}, DDim{16, 3, 1, 1}));
  CHECK(packed({{{2}, {}}, 1}, DDim{16, 3, 1, 2}));
  CHECK_FALSE(packed({{{}, {}}, 2}, DDim{16, 3, 1, 1}));
  CHECK_FALSE(packed({{{}, {}}, 2}, DDim{32, 1, 3, 3}));
  CHECK_FALSE(packed({{{}, {}}, 1}, DDim{16, 3, 1, 1}, DType::f16));
  CHECK_FALSE(packed({{{}}, 1}, DDim{16, 3, 1, 1}));
}

TEST_CASE("places are few if all images together have at most 64 of them, and fewer where units leave lanes empty") {
  CHECK(few_places(64, 1, 64));
  CHECK_FALSE(few_places(64, 1, 65));
  CHECK(few_places(64, 3, 20));
  CHECK_FALSE(few_places(64, 4, 20));
  CHECK_FALSE(few_places(17, 1, 63));
  CHECK(few_places(17, 1, 25));
  CHECK(few_places(64, 7, 9));
  CHECK_FALSE(few_places(64, 8, 9));
  CHECK_FALSE(few_places(64, std::int64_t{1} << 62, 32));
  CHECK(few_places(64, 0, 0));
}

TEST_CASE("many images have the bits of the given weights, by packed ones and by those") {
  CpuDevice two(2);
  Random random(4);
  for (const std::int64_t units : {17, 48})
    for (const std::int64_t places : {9, 20}) {
      const ConvDesc desc{{{}}, 1};
      const Tensor x = random_tensor(random, DType::f32, DDim{40, 30, places}), w = random_tensor(random, DType::f32, DDim{units, 30, 1});
      const auto weights = pack_units(desc, w, two.stream(0));
      CHECK(same_bits(conv(desc, x, weights.value(), nullptr, two.stream(0)), conv(desc, x, w, nullptr, two.stream(0))));
    }
}

TEST_CASE("an x of other channels than packed weights is an error that names both") {
  CpuDevice device(1);
  Random random(3);
  const ConvDesc desc{{{}}, 1};
  const auto weights = pack_units(desc, random_tensor(random, DType::f32, DDim{16, 3, 1}), device.stream(0));
  CHECK_THROWS_AS(conv(desc, random_tensor(random, DType::f32, DDim{1, 4, 2}), weights.value(), nullptr, device.stream(0)), ShapeError);
}

}  // namespace millrace::testing
