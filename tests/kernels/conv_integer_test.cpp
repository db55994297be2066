// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/conv_integer.h>

#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {

Tensor bytes_of(Random& random, DType dtype, const DDim& dims) {
  Tensor made(dtype, dims);
  dtype == DType::i8 ? (void)made.mutable_data<std::int8_t>() : (void)made.mutable_data<std::uint8_t>();
  const auto next = [&] { return random.coin() ? random.between(0, 255) : random.coin() ? 0 : 255; };
  for (std::int64_t i = 0; i < made.elements(); ++i) {
    if (dtype == DType::i8)
      made.mutable_data<std::int8_t>()[i] = static_cast<std::int8_t>(next() - 128);
    else
      made.mutable_data<std::uint8_t>()[i] = static_cast<std::uint8_t>(next());
  }
  return made;
}

std::vector<std::int32_t> numbers_of(Random& random, std::int64_t count, std::int64_t low, std::int64_t high) {
  std::vector<std::int32_t> made;
  for (std::int64_t i = 0; i < count; ++i) made.push_back(static_cast<std::int32_t>(random.between(low, high)));
  return made;
}

std::int32_t number_at(const Tensor& x, std::int64_t place) {
  return x.dtype() == DType::i8 ? std::int32_t{static_cast<const std::int8_t*>(x.raw())[place]}
                                : std::int32_t{static_cast<const std::uint8_t*>(x.raw())[place]};
}

/// The contract in plain code, along two axes.
Tensor expected(const ConvDesc& desc, const Tensor& x, std::int32_t zero, const Tensor& w, const std::vector<std::int32_t>& zeros,
                const std::vector<std::int32_t>& added) {
  const ConvDesc::Axis &ys = desc.axes[0], &xs = desc.axes[1];
  const std::int64_t units = w.dim(0), channels = w.dim(1), height = ConvDesc::out_extent(ys, x.dim(2), w.dim(2)),
                     width = ConvDesc::out_extent(xs, x.dim(3), w.dim(3));
  Tensor made(DType::i32, DDim{x.dim(0), units, height, width});
  std::int32_t* to = made.mutable_data<std::int32_t>();
  for (std::int64_t n = 0; n < x.dim(0); ++n)
    for (std::int64_t unit = 0; unit < units; ++unit)
      for (std::int64_t i = 0; i < height; ++i)
        for (std::int64_t j = 0; j < width; ++j, ++to) {
          *to = added.empty() ? 0 : added[static_cast<std::size_t>(unit)];
          for (std::int64_t c = 0; c < channels; ++c)
            for (std::int64_t ky = 0; ky < w.dim(2); ++ky)
              for (std::int64_t kx = 0; kx < w.dim(3); ++kx) {
                const std::int64_t row = i * ys.stride + ky * ys.dilation - ys.before,
                                   column = j * xs.stride + kx * xs.dilation - xs.before;
                if (row < 0 || row >= x.dim(2) || column < 0 || column >= x.dim(3)) continue;
                const std::int64_t channel = unit / (units / desc.groups) * channels + c;
                const std::int32_t weight = w.data<std::int8_t>()[((unit * channels + c) * w.dim(2) + ky) * w.dim(3) + kx];
                *to += (number_at(x, ((n * x.dim(1) + channel) * x.dim(2) + row) * x.dim(3) + column) - zero) *
                       (weight - (zeros.empty() ? 0 : zeros[static_cast<std::size_t>(unit)]));
              }
        }
  return made;
}

}  // namespace

TEST_CASE(
    "convolutions of bytes are exact for any strides, dilations, pads, groups and zeros, on every instruction set, with 1 or 2 threads") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    for (const std::uint64_t seed : seeds(60)) {
      INFO("seed ", seed);
      Random random(seed);
      const bool flat = random.coin(), alone = random.coin(), many = seed % 5 == 4;
      ConvDesc desc;
      desc.groups = random.between(1, 3);
      const std::int64_t channels = alone           ? 1
                                    : random.coin() ? random.between(1, 9)
                                                    : random.between(10, 40),
                         units = desc.groups * (many ? random.between(7, 40) : random.between(1, 6));
      const std::int64_t high = flat ? 1 : random.between(1, 3), wide = random.between(1, 9);
      desc.axes = {
          flat ? ConvDesc::Axis{} : ConvDesc::Axis{random.between(1, 3), random.between(1, 2), random.between(0, 2), random.between(0, 2)},
          {random.between(1, 3), random.between(1, 3), random.between(0, 5), random.between(0, 5)}};
      const DDim dims{random.between(0, 2), channels * desc.groups, flat ? 1 : random.between(1, many ? 4 : 9),
                      random.between(1, many ? 70 : 150)};
      const Tensor x = bytes_of(random, random.coin() ? DType::u8 : DType::i8, dims),
                   w = bytes_of(random, DType::i8, DDim{units, channels, high, wide});
      const std::vector<std::int32_t> zeros = numbers_of(random, seed % 2 == 0 ? units : 0, -128, 127),
                                      added = numbers_of(random, seed % 3 == 0 ? units : 0, -9999, 9999);
      const Tensor zero = x.dtype() == DType::u8 ? Tensor::scalar(std::uint8_t{200}) : Tensor::scalar(std::int8_t{-100});
      Tensor wanted = expected(desc, x, number_at(zero, 0), w, zeros, added);
      PackedConvInteger packed = pack_conv_integer(desc, w, zeros, added);
      CHECK(same_bits(conv_integer(packed, x, zero, {}, one.stream(0)), wanted));
      CHECK(same_bits(conv_integer(packed, x, zero, {}, two.stream(0)), wanted));
      const Tensor factor = random_tensor(random, DType::f32, DDim{units, 1, 1}, 1e-3), bias = random_tensor(random, DType::f32, DDim{});
      const std::vector<ArithmeticStep> steps{ArithmeticStep::mul, ArithmeticStep::add, ArithmeticStep::round};
      const Tensor* const operands[] = {&factor, &bias};
      for (const DType to : {DType::f32, DType::u8})
        CHECK(same_bits(conv_integer(packed, x, zero, {steps, {factor, bias}, to}, two.stream(0)),
                        arithmetic(steps, wanted, operands, one.stream(0), to)));
      if (!flat) continue;
      desc.axes.erase(desc.axes.begin());
      packed = pack_conv_integer(desc, w.reshape(DDim{units, channels, wide}), zeros, added);
      CHECK(same_bits(conv_integer(packed, x.reshape(DDim{dims[0], dims[1], dims[3]}), zero, {}, two.stream(0)),
                      wanted.reshape(DDim{dims[0], units, wanted.dim(3)})));
    }
  });
}

TEST_CASE(
    "Convolutions of bytes over few places, and depthwise ones of many channels, have the bits of others, on every instruction set, with 1 "
    "or 2 threads") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    for (const std::uint64_t seed : seeds(40)) {
      INFO("seed ", seed);
      Random random(seed);
      const bool depthwise = random.coin();
      ConvDesc desc;
      desc.groups = depthwise ? random.between(16, 150) : random.between(1, 2);
      const std::int64_t channels = depthwise ? 1 : random.between(8, 70), units = desc.groups * (depthwise ? 1 : random.between(16, 90));
      const std::int64_t high = random.between(1, 3), wide = random.between(1, 4);
      for (int axis = 0; axis < 2; ++axis)
        desc.axes.push_back({random.between(1, 3), random.between(1, 2), random.between(0, 3), random.between(0, 3)});
      const DDim dims{random.between(1, 3), channels * desc.groups, random.between(5, 9), random.between(7, 12)};
      const Tensor x = bytes_of(random, random.coin() ? DType::u8 : DType::i8, dims),
                   w = bytes_of(random, DType::i8, DDim{units, channels, high, wide});
      const std::vector<std::int32_t> zeros = numbers_of(random, seed % 4 == 0 ? units : 0, -128, 127),
                                      added = numbers_of(random, seed % 3 == 0 ? units : 0, -9999, 9999);
      const Tensor zero = x.dtype() == DType::u8 ? Tensor::scalar(std::uint8_t{200}) : Tensor::scalar(std::int8_t{-100});
      const Tensor wanted = expected(desc, x, number_at(zero, 0), w, zeros, added);
      const PackedConvInteger packed = pack_conv_integer(desc, w, zeros, added, wanted.dim(2) * wanted.dim(3));
      CHECK(same_bits(conv_integer(packed, x, zero, {}, one.stream(0)), wanted));
      CHECK(same_bits(conv_integer(packed, x, zero, {}, two.stream(0)), wanted));
      CHECK(same_bits(conv_integer(packed, x.rows(0, 1), zero, {}, one.stream(0)), wanted.rows(0, 1)));
      const Tensor factor = random_tensor(random, DType::f32, DDim{units, 1, 1}, 1e-3), bias = random_tensor(random, DType::f32, DDim{}),
                   scale = Tensor::scalar(0.02f), point = Tensor::scalar(100.0f);
      const std::vector<ArithmeticStep> steps{ArithmeticStep::mul, ArithmeticStep::add,   ArithmeticStep::relu,
                                              ArithmeticStep::div, ArithmeticStep::round, ArithmeticStep::add};
      const Tensor* const operands[] = {&factor, &bias, &scale, &point};
      for (const DType to : {DType::f32, DType::u8, DType::i8})
        CHECK(same_bits(conv_integer(packed, x, zero, {steps, {factor, bias, scale, point}, to}, two.stream(0)),
                        arithmetic(steps, wanted, operands, one.stream(0), to)));
    }
  });
}

TEST_CASE(
    "Convolutions of bytes along one axis, of no images, or of images that are padding alone, have the bits of others over few places, "
    "too") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice device(1);
    Random random(9);
    for (const bool depthwise : {false, true})
      for (const std::int64_t batch : {0, 1, 3})
        for (const std::int64_t length : {0, 1, 9}) {
          INFO("depthwise ", depthwise, ", batch ", batch, ", length ", length);
          const ConvDesc desc{{{1, 1, 1, 1}}, depthwise ? 40 : 1};
          const std::int64_t channels = depthwise ? 1 : 24;
          const Tensor x = bytes_of(random, DType::u8, DDim{batch, channels * desc.groups, length}),
                       w = bytes_of(random, DType::i8, DDim{40, channels, 2});
          const Tensor zero = Tensor::scalar(std::uint8_t{3});
          const ConvDesc plane{{{}, desc.axes[0]}, desc.groups};
          const Tensor wanted = expected(plane, x.reshape({batch, x.dim(1), 1, length}), 3, w.reshape({40, channels, 1, 2}), {}, {});
          REQUIRE(wanted.dim(3) == length + 1);
          const PackedConvInteger packed = pack_conv_integer(desc, w, {}, {}, length + 1);
          CHECK(same_bits(conv_integer(packed, x, zero, {}, device.stream(0)), wanted.reshape({batch, 40, length + 1})));
        }
  });
}

TEST_CASE("Units stand in the lanes where places are few, and the channels of a depthwise convolution do") {
  if (!conv_integer_is_fast()) return;
  Random random(5);
  const ConvDesc one{{{}, {}}, 1}, each{{{}, {}}, 32};
  const Tensor w = bytes_of(random, DType::i8, DDim{32, 32, 3, 3}), d = bytes_of(random, DType::i8, DDim{32, 1, 3, 3});
  CHECK(pack_conv_integer(each, d, {}).units);
  CHECK(!pack_conv_integer(each, d, std::vector<std::int32_t>(32, 3)).units);
  CHECK(!pack_conv_integer(one, w, {}).units);
  CHECK(!pack_conv_integer(one, w, {}, {}, 1 << 20).units);
  CHECK(!pack_conv_integer(one, bytes_of(random, DType::i8, DDim{32, 3, 3, 3}), {}, {}, 16).units);
}

TEST_CASE("places between the rows of the output may be more than are computed together") {
  CpuDevice one(1), two(2);
  Random random(8);
  const ConvDesc desc{{{1, 1, 1, 1}, {1, 600, 0, 0}}, 1};
  const Tensor x = bytes_of(random, DType::u8, DDim{1, 5, 3, 1300}), zero = Tensor::scalar(std::uint8_t{7});
  for (const std::int64_t units : {2, 9, 40}) {
    const Tensor w = bytes_of(random, DType::i8, DDim{units, 5, 2, 3});
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(units), 3);
    const Tensor wanted = expected(desc, x, 7, w, zeros, {});
    CHECK(same_bits(conv_integer(pack_conv_integer(desc, w, zeros), x, zero, {}, one.stream(0)), wanted));
    CHECK(same_bits(conv_integer(pack_conv_integer(desc, w, zeros), x, zero, {}, two.stream(0)), wanted));
  }
}

TEST_CASE("a row of a batch has the bits of the row alone, and views are taken") {
  CpuDevice device;
  Random random(3);
  const Tensor x = bytes_of(random, DType::u8, DDim{70, 6, 3}).permute({2, 1, 0}), w = bytes_of(random, DType::i8, DDim{5, 6, 3});
  const PackedConvInteger packed = pack_conv_integer({{{1, 1, 1, 1}}, 1}, w, {});
  const Tensor zero = Tensor::scalar(std::uint8_t{3}), whole = conv_integer(packed, x, zero, {}, device.stream(0));
  for (std::int64_t n = 0; n < 3; ++n)
    CHECK(same_bits(conv_integer(packed, x.rows(n, n + 1), zero, {}, device.stream(0)), whole.rows(n, n + 1)));
}

TEST_CASE("what does not fit a convolution of bytes is named") {
  CpuDevice device;
  Random random(4);
  const Tensor w = bytes_of(random, DType::i8, DDim{2, 3, 1});
  const ConvDesc desc{{{}}, 1};
  CHECK_THROWS_AS(pack_conv_integer(desc, bytes_of(random, DType::u8, DDim{2, 3, 1}), {}), DTypeError);
  CHECK_THROWS_AS(pack_conv_integer({{{}, {}}, 1}, w, {}), ShapeError);
  CHECK_THROWS_AS(pack_conv_integer(desc, w, std::vector<std::int32_t>{1}), ShapeError);
  const PackedConvInteger packed = pack_conv_integer(desc, w, {});
  const Tensor zero = Tensor::scalar(std::uint8_t{0});
  CHECK_THROWS_AS(conv_integer(packed, bytes_of(random, DType::u8, DDim{1, 2, 4}), zero, {}, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(conv_integer(packed, bytes_of(random, DType::i8, DDim{1, 3, 4}), zero, {}, device.stream(0)), DTypeError);
  CHECK_THROWS_AS(
      conv_integer(packed, bytes_of(random, DType::u8, DDim{1, 3, 4}), zero, {{ArithmeticStep::add}, {}, DType::f32}, device.stream(0)),
      ArgumentError);
}

}  // namespace millrace::testing
