// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/conv1d.h>

#include <limits>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/matmul.h>
#include <millrace/kernels/pad.h>

#include "support/random_conv1d.h"

namespace millrace::testing {
namespace {

DDim weight_dims(const Conv1dDesc& desc) { return {desc.out_channels, desc.in_channels / desc.groups, desc.kernel}; }

}  // namespace

TEST_CASE("a convolution of any description agrees with the reference on every device and dtype") {
  each_product_backend([](DeviceUnderTest& on) {
    for (const std::uint64_t seed : seeds(15)) {
      INFO("seed ", seed);
      Random random(seed);
      for (const DType dtype : floats) {
        const Conv1dDesc desc = random_conv1d(random, dtype);
        const Tensor x = random_tensor(random, dtype, DDim{random.between(0, 4), desc.in_channels, random.between(1, 20)});
        const Tensor w = random_tensor(random, dtype, weight_dims(desc)), bias = random_tensor(random, dtype, DDim{desc.out_channels});
        const bool with_bias = random.coin();
        const auto addend = reference::values(bias);
        const auto expected = reference::conv1d(desc, reference::values(x), reference::values(w), with_bias ? &addend : nullptr);
        const Tensor device_bias = on.up(bias);
        Conv1dDesc here = desc;
        const Tensor out = on.down(conv1d(here, on.up(x), on.up(w), with_bias ? &device_bias : nullptr, on.stream()));
        CHECK(error_of(out, expected) <= 30 * on.rounding(dtype));
      }
    }
  });
}

TEST_CASE("a convolution is the dot product of the unfolded input, channels before taps, the bias added after") {
  CpuDevice device;
  Random random(3);
  Conv1dDesc desc;
  desc.in_channels = 40;
  desc.out_channels = 21;
  desc.kernel = 15;  // 600 products: more than one block
  desc.stride = 2;
  desc.pad_before = 3;
  desc.pad_after = 4;
  const StreamRef stream = device.stream(0);
  const Tensor x = random_tensor(random, DType::f32, DDim{1, 40, 30}), w = random_tensor(random, DType::f32, weight_dims(desc));
  const Tensor bias = random_tensor(random, DType::f32, DDim{21});
  const Tensor out = conv1d(desc, x, w, &bias, stream);
  const Tensor padded = pad(x, {0, 0, 3}, {0, 0, 4}, PadMode::constant, 0, stream);
  for (std::int64_t l = 0; l < out.dim(2); ++l) {
    const Tensor patch = clone(padded.select(0, 0).slice(1, 2 * l, 2 * l + 15), stream).reshape(DDim{600});
    const Tensor sums = matmul(patch, w.reshape(DDim{21, 600}).permute({1, 0}), stream);
    for (std::int64_t o = 0; o < 21; ++o) CHECK(out.data<float>()[o * out.dim(2) + l] == sums.data<float>()[o] + bias.data<float>()[o]);
  }
}

TEST_CASE("a sequence has the same bits alone, in a batch of 64, and with 2 threads") {
  CpuDevice one(1), two(2);
  Random random(8);
  for (const std::int64_t length : {1, 2, 4, 9}) {
    Conv1dDesc desc;
    desc.in_channels = 129;
    desc.out_channels = 128;
    desc.kernel = 3;
    desc.pad_before = desc.pad_after = 1;
    const Tensor x = random_tensor(random, DType::f32, DDim{64, 129, length}), w = random_tensor(random, DType::f32, weight_dims(desc));
    const Tensor bias = random_tensor(random, DType::f32, DDim{128});
    const Tensor whole = conv1d(desc, x, w, &bias, one.stream(0));
    CHECK(same_bits(conv1d(desc, x, w, &bias, two.stream(0)), whole));
    for (const std::int64_t row : {0, 1, 30, 63})
      CHECK(same_bits(conv1d(desc, x.rows(row, row + 1), w, &bias, two.stream(0)), whole.rows(row, row + 1)));
    CHECK(same_bits(conv1d(desc, x.rows(5, 22), w, &bias, one.stream(0)), whole.rows(5, 22)));
  }
}

TEST_CASE("a convolution over one channel reads its input in place, padded or not, contiguous or not") {
  CpuDevice device;
  Random random(4);
  Conv1dDesc desc;
  desc.in_channels = 1;
  desc.out_channels = 10;
  desc.kernel = 16;
  desc.stride = 8;
  const Tensor w = random_tensor(random, DType::f32, weight_dims(desc));
  const Tensor x = random_tensor(random, DType::f32, DDim{3, 1, 40});
  const Tensor out = conv1d(desc, x, w, nullptr, device.stream(0));
  const Tensor turned = clone(x.permute({2, 1, 0}), device.stream(0)).permute({2, 1, 0});
  CHECK(same_bits(conv1d(desc, turned, w, nullptr, device.stream(0)), out));
}

TEST_CASE("an input shorter than the kernel, no rows, or no channels give what their extents say") {
  CpuDevice device;
  Conv1dDesc desc;
  desc.in_channels = 1;
  desc.out_channels = 2;
  desc.kernel = 5;
  const Tensor w = Tensor::from(std::vector<float>(10, 1.0f), DDim{2, 1, 5});
  CHECK(conv1d(desc, Tensor::from(std::vector<float>(3, 1.0f), DDim{1, 1, 3}), w, nullptr, device.stream(0)).dims() == DDim{1, 2, 0});
  CHECK(conv1d(desc, Tensor(DType::f32, DDim{0, 1, 9}), w, nullptr, device.stream(0)).dims() == DDim{0, 2, 5});
}

TEST_CASE("dilations and pads near the greatest integer see the elements that they say") {
  CpuDevice device;
  constexpr std::int64_t far = std::int64_t{1} << 62;
  Conv1dDesc desc;
  desc.in_channels = desc.out_channels = 2;
  desc.kernel = 2;
  desc.dilation = desc.pad_before = far;
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, DDim{1, 2, 3});
  const Tensor w = Tensor::from(std::vector<float>{7, 1, 7, 0, 7, 0, 7, 1}, DDim{2, 2, 2});
  // The first tap lies in the pad, the second one is the element itself.
  CHECK(conv1d(desc, x, w, nullptr, device.stream(0)).to_vector<float>() == x.to_vector<float>());
  desc.kernel = 1;
  desc.pad_before = 0;
  desc.dilation = std::numeric_limits<std::int64_t>::max();
  const Tensor one = Tensor::from(std::vector<float>{1, 0, 0, 1}, DDim{2, 2, 1});
  CHECK(conv1d(desc, x, one, nullptr, device.stream(0)).to_vector<float>() == x.to_vector<float>());
  desc.dilation = 1;
  desc.pad_after = far;
  desc.stride = far;
  CHECK(conv1d(desc, x, one, nullptr, device.stream(0)).to_vector<float>() == std::vector<float>{1, 0, 4, 0});
}

TEST_CASE("a bias whose elements lie apart is added as its dense copy") {
  CpuDevice device;
  Random random(3);
  Conv1dDesc desc;
  desc.in_channels = 2;
  desc.out_channels = 4;
  desc.kernel = 3;
  const Tensor x = random_tensor(random, DType::f32, DDim{2, 2, 9}), w = random_tensor(random, DType::f32, DDim{4, 2, 3}),
               columns = random_tensor(random, DType::f32, DDim{4, 3});
  const Tensor apart = columns.select(1, 1), dense = contiguous(apart, device.stream(0));
  CHECK(same_bits(conv1d(desc, x, w, &apart, device.stream(0)), conv1d(desc, x, w, &dense, device.stream(0))));
}

TEST_CASE("descriptions and operands that do not fit are errors that name the numbers") {
  CpuDevice device;
  Conv1dDesc desc;
  desc.in_channels = 3;
  desc.out_channels = 4;
  desc.groups = 2;
  CHECK_THROWS_WITH_AS(make_conv1d(desc), "conv1d: expected channels that 2 groups divide, found 3 and 4", ArgumentError);
  desc.groups = 1;
  desc.stride = 0;
  CHECK_THROWS_WITH_AS(make_conv1d(desc), "conv1d: expected stride of at least 1, found 0", ArgumentError);
  desc.stride = 1;
  const Tensor w(DType::f32, DDim{4, 3, 2});
  CHECK_THROWS_AS(pack(make_conv1d(desc), w, device.stream(0)), ShapeError);
  const Tensor picture = Tensor::from(std::vector<float>(24, 1.0f), DDim{1, 3, 4, 2});
  CHECK_THROWS_WITH_AS(conv1d(desc, picture, w, nullptr, device.stream(0)), "conv1d: expected x of [N, 3, L], found f32[1, 3, 4, 2] on cpu",
                       ShapeError);
}

}  // namespace millrace::testing
