// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/int8.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/cpu/float_functions.h>
#include <millrace/kernels/cpu/int8_kernels.h>
#include <millrace/tensor/cuda/copy.h>

namespace millrace::testing {
namespace {

Tensor random_bytes(Random& random, const DDim& dims) {
  Tensor made(DType::i8, dims);
  for (std::int64_t i = 0; i < dims.elements(); ++i)
    made.mutable_data<std::int8_t>()[i] = static_cast<std::int8_t>(random.coin() ? random.between(-128, 127) : random.coin() ? -128 : 127);
  return made;
}

Tensor product(const Tensor& x, const Tensor& x_scales, const Tensor& w, const Tensor& w_scales, StreamRef stream) {
  const Int8Plan plan = make_int8_plan({w.dim(0), w.dim(1)}, stream.place());
  const PackedInt8 packed = pack(plan, w, w_scales, stream);
  Tensor out(DType::f32, DDim{x.dim(0), w.dim(1)}, stream.memory());
  run(plan, packed, x, x_scales, out, stream);
  return out;
}

/// The contract in plain code: an exact sum, then three roundings.
Tensor expected_product(const Tensor& x, const Tensor& x_scales, const Tensor& w, const Tensor& w_scales) {
  Tensor made(DType::f32, DDim{x.dim(0), w.dim(1)});
  for (std::int64_t i = 0; i < x.dim(0); ++i)
    for (std::int64_t j = 0; j < w.dim(1); ++j) {
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < x.dim(1); ++k)
        sum += std::int64_t{x.data<std::int8_t>()[i * x.dim(1) + k]} * w.data<std::int8_t>()[k * w.dim(1) + j];
      const float scaled = static_cast<float>(sum) * x_scales.data<float>()[i];
      made.mutable_data<float>()[i * w.dim(1) + j] = scaled * w_scales.data<float>()[j];
    }
  return made;
}

/// kernels/int8.h, one row.
void expect_quantized(const float* x, std::int64_t k, const std::int8_t* values, float scale) {
  float most = 0;
  for (std::int64_t i = 0; i < k; ++i) most = std::max(most, std::abs(x[i]));
  CHECK(scale == cpu::flushed(most / 127.0f));
  const float moved = scale < 0x1p-107f ? 0x1p64f : 1.0f;
  const float factor = scale == 0 ? 0.0f : 127.0f / (most * moved);
  for (std::int64_t i = 0; i < k; ++i)
    CHECK(static_cast<float>(values[i]) == std::clamp(std::nearbyintf(x[i] * moved * factor), -127.0f, 127.0f));
}

}  // namespace

TEST_CASE("rows are quantized to the nearest of 255 steps, each by its own greatest, on every device") {
  each_backend([](DeviceUnderTest& on) {
    for (const std::uint64_t seed : seeds(6)) {
      INFO("seed ", seed);
      Random random(seed);
      const std::int64_t n = random.between(0, 5), k = random.between(1, 70);
      const Tensor x = random_tensor(random, DType::f32, DDim{n, k}, random.coin() ? 1 : 1e-3);
      const QuantizedRows made = quantize_rows(on.up(x), on.stream());
      const Tensor values = on.down(made.values), scales = on.down(made.scales);
      REQUIRE(values.dims() == x.dims());
      REQUIRE(scales.dims() == DDim{n, 1});
      for (std::int64_t i = 0; i < n; ++i)
        expect_quantized(x.data<float>() + i * k, k, values.data<std::int8_t>() + i * k, scales.data<float>()[i]);
    }
  });
}

TEST_CASE("rows of zeros, of nothing, of halves between two steps, of infinities and of no numbers") {
  each_instruction_set([&](const std::string&) {
    CpuDevice device;
    const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    const Tensor x = Tensor::from<float>({0, 0, 0, 127, 0.5f, -1.5f, inf, 1, -2, 3, nan, 5}, DDim{4, 3});
    const QuantizedRows made = quantize_rows(x, device.stream(0));
    const auto* values = made.values.data<std::int8_t>();
    const std::vector<int> found(values, values + 12);
    CHECK(found == std::vector<int>{0, 0, 0, 127, 0, -2, 0, 0, 0, 0, 0, 0});
    const float* scales = made.scales.data<float>();
    CHECK(scales[0] == 0);
    CHECK(scales[1] == 1);
    CHECK(scales[2] == inf);
    CHECK(scales[3] != scales[3]);
    CHECK(quantize_rows(Tensor(DType::f32, DDim{0, 3}), device.stream(0)).values.dims() == DDim{0, 3});
    const Tensor none = quantize_rows(Tensor(DType::f32, DDim{2, 0}), device.stream(0)).scales;
    CHECK(none.data<float>()[1] == 0);
    // Views of any strides, and ranks.
    const Tensor turned = x.rows(0, 2).permute({1, 0});
    CHECK(quantize_rows(turned, device.stream(0)).scales.dims() == DDim{3, 1});
  });
}

TEST_CASE("rows of the least numbers are quantized as others are, on every device") {
  each_backend([](DeviceUnderTest& on) {
    for (const float unit : {0x1p-120f, 0x1p-107f, 0x1p-100f, 0x1p-20f}) {
      INFO("unit ", unit);
      std::vector<float> numbers;
      for (const float number : {100.0f, -50.0f, 0.0f, 25.0f, 1.0f}) numbers.push_back(number * unit);
      const Tensor x = Tensor::from<float>(numbers, DDim{1, 5});
      const QuantizedRows made = quantize_rows(on.up(x), on.stream());
      CHECK(on.down(made.values).to_vector<std::int8_t>() == std::vector<std::int8_t>{127, -64, 0, 32, 1});
      expect_quantized(x.data<float>(), 5, on.down(made.values).data<std::int8_t>(), on.down(made.scales).data<float>()[0]);
    }
  });
}

TEST_CASE("a row of subnormals, or whose scale is one, is quantized as the row that arithmetic reads") {
  CpuDevice device;
  for (const float most : {1e-40f, 0x1p-126f, 1e-36f, 0x1p-119f}) {
    const std::vector<float> numbers{most, -3e-45f, 0.0f, most / 4};
    std::vector<float> read;
    for (const float number : numbers) read.push_back(cpu::flushed(number));
    const QuantizedRows made = quantize_rows(Tensor::from<float>(numbers, DDim{1, 4}), device.stream(0));
    expect_quantized(read.data(), 4, made.values.data<std::int8_t>(), made.scales.data<float>()[0]);
  }
}

TEST_CASE("products of i8 are exact sums, scaled, with the same bits on every instruction set, with any rows and threads") {
  CpuDevice one(1), two(2);
  Random random(7);
  for (const std::int64_t k : {0, 1, 3, 4, 5, 64, 127, 1030})
    for (const std::int64_t n : {1, 15, 16, 64, 130}) {
      const Tensor x = random_bytes(random, DDim{9, k}), w = random_bytes(random, DDim{k, n});
      const Tensor x_scales = random_tensor(random, DType::f32, DDim{9, 1}), w_scales = random_tensor(random, DType::f32, DDim{n});
      const Tensor expected = expected_product(x, x_scales, w, w_scales);
      each_instruction_set([&](const std::string&) {
        INFO("k ", k, ", n ", n);
        CHECK(same_bits(product(x, x_scales, w, w_scales, one.stream(0)), expected));
        for (const std::int64_t m : {1, 2, 3, 5, 8})
          CHECK(same_bits(product(x.rows(9 - m, 9), x_scales.rows(9 - m, 9), w, w_scales, two.stream(0)), expected.rows(9 - m, 9)));
      });
    }
}

TEST_CASE("the greatest sums do not overflow") {
  const std::int64_t k = 131071;
  const Tensor scale = Tensor::from<float>({1}, DDim{1, 1});
  Tensor low(DType::i8, DDim{1, k});
  std::fill_n(low.mutable_data<std::int8_t>(), k, std::int8_t{-128});
  each_instruction_set([&](const std::string&) {
    CpuDevice device;
    const Tensor found = product(low, scale, low.permute({1, 0}), scale.reshape(DDim{1}), device.stream(0));
    CHECK(found.data<float>()[0] == static_cast<float>(k * 128 * 128));
  });
  CHECK_THROWS_WITH_AS(make_int8_plan({k + 1, 1}), doctest::Contains("k of 0 to 131071"), ArgumentError);
}

TEST_CASE("products of bytes have the same bits without instructions of dot products, with those of vectors and with those of tiles") {
  const cpu::Int8Kernels& plain = cpu::plain_int8_kernels();
  std::vector<const cpu::Int8Kernels*> all{&plain};
  if (&cpu::int8_kernels() != &plain) {
    all.push_back(cpu::vnni_kernels(plain));
    if (const cpu::Int8Kernels* const tiles = cpu::amx_kernels(*all.back())) all.push_back(tiles);
  }
  for (const std::uint64_t seed : seeds(60)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t rows = random.between(1, cpu::max_rows), k = random.coin() ? random.between(0, 70) : 64 * random.between(1, 3);
    const std::int64_t n = random.between(1, 200), step = k + random.between(0, 3);
    const bool even = random.coin(), has_sign = random.coin(), whole = random.coin();
    const auto zero = static_cast<std::int32_t>(random.between(-128, 255));
    const Tensor x = random_bytes(random, DDim{rows, step}), w = random_bytes(random, DDim{k, n});
    const Tensor x_scales = random_tensor(random, DType::f32, DDim{rows}), w_scales = random_tensor(random, DType::f32, DDim{n});
    std::vector<std::int64_t> order(static_cast<std::size_t>(rows));
    for (std::int64_t row = 0; row < rows; ++row) order[static_cast<std::size_t>(row)] = even ? row : (row * 7 + 3) % rows;
    std::vector<std::uint32_t> wanted;
    for (const cpu::Int8Kernels* kernels : all) {
      const cpu::Int8Layout layout{k, n, kernels->lanes, kernels->group};
      // Rows and panels that end with their memory: an access behind them is found by the sanitizers.
      std::vector<std::int8_t> packed(static_cast<std::size_t>(layout.panels() * layout.panel_stride()), 0);
      std::vector<std::int32_t> offsets(static_cast<std::size_t>(layout.padded_columns()), 0);
      std::vector<float> scales(static_cast<std::size_t>(layout.padded_columns()), 0);
      for (std::int64_t j = 0; j < n; ++j) {
        scales[static_cast<std::size_t>(j)] = w_scales.data<float>()[j];
        for (std::int64_t at = 0; at < k; ++at) {
          const std::int8_t weight = w.data<std::int8_t>()[at * n + j];
          offsets[static_cast<std::size_t>(j)] += 128 * weight;
          packed[static_cast<std::size_t>(j / layout.width() * layout.panel_stride() + at / layout.group * layout.width() * layout.group +
                                          j % layout.width() * layout.group + at % layout.group)] = weight;
        }
      }
      const std::uint8_t* a[cpu::max_rows];
      const float* a_scales[cpu::max_rows];
      float* out[cpu::max_rows];
      std::vector<float> made(static_cast<std::size_t>(rows * n));
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t from = order[static_cast<std::size_t>(row)];
        a[row] = static_cast<const std::uint8_t*>(x.raw()) + from * step;
        a_scales[row] = x_scales.data<float>() + from;
        out[row] = made.data() + row * n;
      }
      kernels->multiply(
          {a, a_scales, out, rows, k, packed.data(), offsets.data(), scales.data(), n, 0, layout.panels(), zero, has_sign, whole});
      std::vector<std::uint32_t> bits(made.size());
      std::memcpy(bits.data(), made.data(), made.size() * sizeof(float));
      if (kernels == &plain) {
        wanted = bits;
        for (std::int64_t row = 0; row < rows && whole; ++row)
          for (std::int64_t j = 0; j < n; ++j) {
            std::int64_t sum = 0;
            for (std::int64_t at = 0; at < k; ++at) {
              const std::uint8_t given = a[row][at];
              sum += ((has_sign ? static_cast<std::int8_t>(given) : std::int64_t{given}) - zero) * w.data<std::int8_t>()[at * n + j];
            }
            REQUIRE(static_cast<std::int32_t>(bits[static_cast<std::size_t>(row * n + j)]) == sum);
          }
      }
      CHECK(bits == wanted);
    }
  }
}

TEST_CASE("what does not fit a product of i8 is named") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  CHECK_THROWS_AS(quantize_rows(Tensor::from<double>({1, 2}, DDim{1, 2}), stream), DTypeError);
  CHECK_THROWS_AS(quantize_rows(Tensor::scalar(1.0f), stream), ShapeError);
  const Int8Plan plan = make_int8_plan({2, 3});
  Random random(1);
  const Tensor w = random_bytes(random, DDim{2, 3}), scales = random_tensor(random, DType::f32, DDim{3});
  CHECK_THROWS_WITH_AS(pack(plan, w, scales.rows(0, 2), stream), doctest::Contains("expected [3] for the scales"), ShapeError);
  const PackedInt8 packed = pack(plan, w, scales, stream);
  Tensor out(DType::f32, DDim{1, 3});
  CHECK_THROWS_AS(run(plan, packed, random_bytes(random, DDim{1, 3}), scales.rows(0, 1).reshape(DDim{1, 1}), out, stream), ShapeError);
  if (!cuda::built()) CHECK_THROWS_AS(make_int8_plan({2, 3}, CudaPlace{0}), PlaceError);
}

}  // namespace millrace::testing
