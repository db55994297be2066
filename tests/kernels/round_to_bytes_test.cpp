// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/round_to_bytes.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {

/// kernels/round_to_bytes.h in plain code: scale, zero, and the byte of each element.
struct Bytes {
  float scale = 1, zero = 0;
  std::vector<float> values;

  explicit Bytes(const std::vector<float>& x) {
    float high = 0, low = 0;
    for (const float value : x) std::tie(low, high) = std::pair(std::min(low, value), std::max(high, value));
    if (high != low) scale = (high - low) / 255.0f;
    zero = std::nearbyintf(std::clamp(-low / scale, 0.0f, 255.0f));
    for (const float value : x) values.push_back(std::clamp(std::nearbyintf(value / scale) + zero, 0.0f, 255.0f));
  }
};

/// The pieces of the elements that are rounded together.
std::vector<std::vector<float>> pieces(const Tensor& x, int axis) {
  const std::vector<float> all = x.to_vector<float>();
  const auto count = static_cast<std::size_t>(x.dims().slice(axis, x.rank()).elements());
  std::vector<std::vector<float>> made;
  for (std::size_t at = 0; at < all.size(); at += count)
    made.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(at), all.begin() + static_cast<std::ptrdiff_t>(at + count));
  return made;
}

/// Numbers of one sign or of both.
Tensor some_numbers(Random& random, const DDim& dims) {
  Tensor made = random_tensor(random, DType::f32, dims);
  const std::int64_t sign = random.between(-1, 1);
  for (std::int64_t i = 0; i < made.elements() && sign != 0; ++i)
    made.mutable_data<float>()[i] = static_cast<float>(sign) * std::abs(made.data<float>()[i]);
  return made;
}

}  // namespace

TEST_CASE("numbers go through bytes between the least and the greatest of those that are rounded together, on every device") {
  each_backend([](DeviceUnderTest& on) {
    for (const std::uint64_t seed : seeds(6)) {
      INFO("seed ", seed);
      Random random(seed);
      const Tensor x = some_numbers(random, DDim{random.between(1, 3), random.between(1, 4), random.between(1, 70)});
      for (int axis = 0; axis <= 3; ++axis) {
        std::vector<float> expected;
        for (const std::vector<float>& piece : pieces(x, axis)) {
          const Bytes bytes(piece);
          for (const float value : bytes.values) expected.push_back((value - bytes.zero) * bytes.scale);
        }
        CHECK(same_bits(on.down(round_to_bytes(on.up(x), axis, on.stream())), Tensor::from<float>(expected, x.dims())));
      }
      const Tensor turned = x.permute({2, 0, 1});
      CHECK(same_bits(on.down(round_to_bytes(on.up(turned), 0, on.stream())),
                      on.down(round_to_bytes(on.up(x), 0, on.stream())).permute({2, 0, 1})));
    }
  });
}

TEST_CASE("products of such bytes are exact sums, scaled, with the same bits on every instruction set and device") {
  each_backend([](DeviceUnderTest& on) {
    Random random(11);
    for (const std::int64_t k : {1, 3, 4, 65, 600})
      for (const std::int64_t n : {1, 17, 130}) {
        const Tensor x = some_numbers(random, DDim{2, 5, k});
        Tensor w(DType::i8, DDim{k, n});
        for (std::int64_t i = 0; i < w.elements(); ++i)
          w.mutable_data<std::int8_t>()[i] = static_cast<std::int8_t>(random.between(-128, 127));
        const Tensor scales = random_tensor(random, DType::f32, DDim{n});
        for (int axis = 0; axis < 3; ++axis) {
          std::vector<float> expected;
          for (const std::vector<float>& piece : pieces(x, axis)) {
            const Bytes bytes(piece);
            for (std::size_t row = 0; row < piece.size(); row += static_cast<std::size_t>(k))
              for (std::int64_t column = 0; column < n; ++column) {
                std::int64_t sum = 0;
                for (std::int64_t i = 0; i < k; ++i)
                  sum += static_cast<std::int64_t>(bytes.values[row + static_cast<std::size_t>(i)] - bytes.zero) *
                         w.data<std::int8_t>()[i * n + column];
                expected.push_back((static_cast<float>(sum) * bytes.scale) * scales.data<float>()[column]);
              }
          }
          INFO("k ", k, ", n ", n, ", axis ", axis);
          const Int8Plan plan = make_int8_plan({k, n}, on.stream().place());
          const PackedInt8 packed = pack(plan, on.up(w), on.up(scales), on.stream());
          CHECK(same_bits(on.down(matmul_bytes(plan, packed, on.up(x), axis, on.stream())), Tensor::from<float>(expected, DDim{2, 5, n})));
        }
      }
  });
  Random random(12);
  const Tensor x = some_numbers(random, DDim{3, 50});
  Tensor w(DType::i8, DDim{50, 70});
  for (std::int64_t i = 0; i < w.elements(); ++i) w.mutable_data<std::int8_t>()[i] = static_cast<std::int8_t>(random.between(-128, 127));
  const Tensor scales = random_tensor(random, DType::f32, DDim{70});
  std::optional<Tensor> first;
  each_instruction_set([&](const std::string&) {
    CpuDevice device(2);
    const Int8Plan plan = make_int8_plan({50, 70});
    const PackedInt8 packed = pack(plan, w, scales, device.stream(0));
    const Tensor made = matmul_bytes(plan, packed, x, 1, device.stream(0));
    if (!first) first = made;
    CHECK(same_bits(made, *first));
    const Tensor coupled = matmul_bytes(plan, packed, x, 0, device.stream(0));
    for (const std::size_t room : {50, 100, 150}) {
      std::vector<std::uint8_t> bytes(room);
      Tensor all(DType::f32, DDim{3, 70}), row(DType::f32, DDim{1, 70});
      matmul_bytes(plan, packed, {const_cast<float*>(x.data<float>()) + 50, 50}, 1, bytes, {row.mutable_data<float>(), 70});
      matmul_bytes(plan, packed, {const_cast<float*>(x.data<float>()), 50}, 3, bytes, {all.mutable_data<float>(), 70});
      CHECK(same_bits(row, made.rows(1, 2)));
      CHECK(same_bits(all, coupled));
    }
  });
}

TEST_CASE("bytes, their scales and zeros, and exact sums of bytes of either dtype, on every device") {
  each_backend([](DeviceUnderTest& on) {
    Random random(13);
    for (const std::int64_t k : {1, 5, 64, 600}) {
      const std::int64_t n = 70;
      const Tensor x = some_numbers(random, DDim{3, 4, k});
      Tensor w(DType::i8, DDim{k, n});
      for (std::int64_t i = 0; i < w.elements(); ++i)
        w.mutable_data<std::int8_t>()[i] = static_cast<std::int8_t>(random.between(-128, 127));
      const Int8Plan plan = make_int8_plan({k, n}, on.stream().place());
      const PackedInt8 packed = pack(plan, on.up(w), on.up(Tensor::from<float>(std::vector<float>(n, 1), DDim{n})), on.stream());
      const auto sums = [&](const std::vector<std::int64_t>& rows) {
        std::vector<std::int32_t> made;
        for (std::size_t row = 0; row < rows.size(); row += static_cast<std::size_t>(k))
          for (std::int64_t column = 0; column < n; ++column) {
            std::int64_t sum = 0;
            for (std::int64_t i = 0; i < k; ++i) sum += rows[row + static_cast<std::size_t>(i)] * w.data<std::int8_t>()[i * n + column];
            made.push_back(static_cast<std::int32_t>(sum));
          }
        return made;
      };
      for (int axis = 0; axis < 3; ++axis) {
        INFO("k ", k, ", axis ", axis);
        const ByteTensor made = quantize_bytes(on.up(x), axis, on.stream());
        std::vector<float> scales;
        std::vector<std::uint8_t> values, zeros;
        std::vector<std::int64_t> centred;
        for (const std::vector<float>& piece : pieces(x, axis)) {
          const Bytes bytes(piece);
          scales.push_back(bytes.scale);
          zeros.push_back(static_cast<std::uint8_t>(bytes.zero));
          for (const float value : bytes.values) {
            values.push_back(static_cast<std::uint8_t>(value));
            centred.push_back(static_cast<std::int64_t>(value - bytes.zero));
          }
        }
        CHECK(on.down(made.bytes).to_vector<std::uint8_t>() == values);
        CHECK(on.down(made.scale).to_vector<float>() == scales);
        CHECK(on.down(made.zero).to_vector<std::uint8_t>() == zeros);
        CHECK(made.zero.dims() == x.dims().slice(0, axis));
        const Tensor found = matmul_integer(plan, packed, made.bytes, made.zero, {}, on.stream());
        CHECK(on.down(found).to_vector<std::int32_t>() == sums(centred));
      }
      Tensor bytes(DType::i8, DDim{2, k});
      std::vector<std::int64_t> centred;
      for (std::int64_t i = 0; i < bytes.elements(); ++i) {
        bytes.mutable_data<std::int8_t>()[i] = static_cast<std::int8_t>(random.between(-128, 127));
        centred.push_back(bytes.data<std::int8_t>()[i] + 128);
      }
      const Tensor least = Tensor::scalar(std::int8_t{-128});
      CHECK(on.down(matmul_integer(plan, packed, on.up(bytes), on.up(least), {}, on.stream())).to_vector<std::int32_t>() == sums(centred));
    }
  });
}

TEST_CASE("sums of bytes with zeros of columns and numbers added, and steps on them, have the bits of plain code for any extents") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    Random random(12);
    for (const std::int64_t k : {0, 1, 5, 64, 130})
      for (const std::int64_t n : {1, 17, 64, 200})
        for (const std::int64_t rows : {0, 1, 2, 3, 33}) {
          INFO("k ", k, ", n ", n, ", rows ", rows);
          const bool has_sign = random.coin();
          Tensor x(has_sign ? DType::i8 : DType::u8, DDim{rows, k}), w(DType::i8, DDim{k, n}), zeros(DType::i32, DDim{n}),
              added(DType::i32, DDim{n});
          has_sign ? (void)x.mutable_data<std::int8_t>() : (void)x.mutable_data<std::uint8_t>();
          (void)w.mutable_data<std::int8_t>();
          for (std::int64_t i = 0; i < x.elements(); ++i) {
            if (has_sign)
              x.mutable_data<std::int8_t>()[i] = static_cast<std::int8_t>(random.between(-128, 127));
            else
              x.mutable_data<std::uint8_t>()[i] = static_cast<std::uint8_t>(random.between(0, 255));
          }
          for (std::int64_t i = 0; i < w.elements(); ++i)
            w.mutable_data<std::int8_t>()[i] = static_cast<std::int8_t>(random.between(-128, 127));
          for (std::int64_t i = 0; i < n; ++i) {
            zeros.mutable_data<std::int32_t>()[i] = static_cast<std::int32_t>(random.between(-128, 127));
            added.mutable_data<std::int32_t>()[i] = static_cast<std::int32_t>(random.between(-100000, 100000));
          }
          const Tensor zero = has_sign ? Tensor::scalar(std::int8_t{-7}) : Tensor::scalar(std::uint8_t{131});
          const Int8Plan plan = make_int8_plan({k, n});
          const PackedInt8 packed = pack(plan, w, random_tensor(random, DType::f32, DDim{n}), one.stream(0));
          Tensor wanted(DType::i32, DDim{rows, n});
          for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t j = 0; j < n; ++j) {
              std::int32_t sum = added.data<std::int32_t>()[j];
              for (std::int64_t at = 0; at < k; ++at) {
                const std::uint8_t given = static_cast<const std::uint8_t*>(x.raw())[i * k + at];
                const std::int32_t value = has_sign ? static_cast<std::int8_t>(given) + 7 : given - 131;
                sum += value * (w.data<std::int8_t>()[at * n + j] - zeros.data<std::int32_t>()[j]);
              }
              wanted.mutable_data<std::int32_t>()[i * n + j] = sum;
            }
          const ByteColumns columns{&zeros, &added};
          if (k > 0) CHECK(same_bits(matmul_integer(plan, packed, x, zero, columns, two.stream(0)), wanted));
          const Tensor factor = random_tensor(random, DType::f32, DDim{n}, 1e-3), bias = random_tensor(random, DType::f32, DDim{});
          const std::vector<ArithmeticStep> steps{ArithmeticStep::mul, ArithmeticStep::round, ArithmeticStep::add};
          const Tensor* const operands[] = {&factor, &bias};
          for (const DType to : {DType::f32, DType::u8, DType::i8})
            CHECK(same_bits(matmul_integer(plan, packed, x, zero, columns, steps, operands, to, two.stream(0)),
                            arithmetic(steps, wanted, operands, one.stream(0), to)));
        }
  });
}

TEST_CASE("a NaN or an infinity makes NaN of all that is rounded with it, and zeros stay zeros") {
  CpuDevice device;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    std::vector<float> numbers(80, 1.0f);
    numbers[37] = odd;
    const std::vector<float> found = round_to_bytes(Tensor::from<float>(numbers, DDim{2, 40}), 1, device.stream(0)).to_vector<float>();
    for (std::size_t i = 0; i < 80; ++i) CHECK(std::isnan(found[i]) == (i < 40));
  }
  CHECK(round_to_bytes(Tensor::from<float>({0, 0, 0}, DDim{3}), 0, device.stream(0)).to_vector<float>() == std::vector<float>{0, 0, 0});
  CHECK(round_to_bytes(Tensor(DType::f32, DDim{0, 3}), 0, device.stream(0)).dims() == DDim{0, 3});
}

TEST_CASE("numbers whose steps would be below the least number become zeros, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor x = Tensor::from<float>({1e-44F, 0, -1e-44F}, DDim{1, 3});
    for (const float value : on.down(round_to_bytes(on.up(x), 0, on.stream())).to_vector<float>()) CHECK(value == 0);
    const ByteTensor bytes = quantize_bytes(on.up(x), 0, on.stream());
    CHECK(on.down(bytes.scale).to_vector<float>() == std::vector<float>{1});
  });
}

TEST_CASE("what cannot be rounded to bytes is named") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  const Int8Plan plan = make_int8_plan({2, 1});
  const PackedInt8 packed = pack(plan, Tensor::from<std::int8_t>({1, 2}, DDim{2, 1}), Tensor::from<float>({1}, DDim{1}), stream);
  CHECK_THROWS_AS(round_to_bytes(Tensor::from<double>({1, 2}, DDim{2}), 0, stream), DTypeError);
  CHECK_THROWS_AS(round_to_bytes(Tensor::from<float>({1, 2}, DDim{2}), 2, stream), IndexError);
  CHECK_THROWS_WITH_AS(matmul_bytes(plan, packed, Tensor::from<float>({1, 2, 3}, DDim{1, 3}), 0, stream),
                       doctest::Contains("expected rows of 2 elements"), ShapeError);
  CHECK_THROWS_AS(matmul_bytes(plan, packed, Tensor::from<float>({1, 2}, DDim{1, 2}), 2, stream), IndexError);
}

}  // namespace millrace::testing
