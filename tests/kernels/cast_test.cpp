// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cast.h>

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {

constexpr DType all[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i8, DType::u8, DType::boolean};

}  // namespace

TEST_CASE("small whole numbers survive a cast between any two dtypes, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const reference::Values numbers{DDim{2, 2}, {0, 1, 1, 0}};
    for (const DType from : all)
      for (const DType to : all)
        CHECK(reference::values(on.down(cast(on.up(reference::tensor(numbers, from)), to, on.stream()))).at == numbers.at);
  });
}

TEST_CASE("floats become integers by truncation, clamped to the range, NaN to 0") {
  CpuDevice device;
  constexpr double inf = std::numeric_limits<double>::infinity();
  const Tensor x = Tensor::from<double>({1.9, -1.9, 1e30, -1e30, inf, std::nan("")});
  using Limits = std::numeric_limits<std::int64_t>;
  CHECK(cast(x, DType::i64, device.stream(0)).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{1, -1, Limits::max(), Limits::min(), Limits::max(), 0});
  CHECK(cast(x, DType::u8, device.stream(0)).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{1, 0, 255, 0, 255, 0});
  CHECK(cast(x, DType::boolean, device.stream(0)).to_vector<bool>() == std::vector<bool>(6, true));
}

TEST_CASE("integers keep their low bits, floats round to nearest even") {
  CpuDevice device;
  CHECK(cast(Tensor::from<std::int32_t>({257, -1}), DType::u8, device.stream(0)).to_vector<std::uint8_t>() ==
        std::vector<std::uint8_t>{1, 255});
  const std::vector<float16> half = cast(Tensor::from<float>({2049.0f, 2051.0f}), DType::f16, device.stream(0)).to_vector<float16>();
  CHECK((static_cast<float>(half[0]) == 2048 && static_cast<float>(half[1]) == 2052));
}

TEST_CASE("integers become f16 and bf16 with one rounding, to the nearest") {
  CpuDevice device;
  const auto bits_of = [&](const Tensor& x) {
    std::vector<int> bits;
    for (const bfloat16 one : cast(x, DType::bf16, device.stream(0)).to_vector<bfloat16>()) bits.push_back(one.bits);
    return bits;
  };
  // Halfway between 2^30 and the next bf16, and one beside it: f32 takes both to the middle, and from there to even.
  constexpr std::int64_t middle = (std::int64_t{1} << 30) + (std::int64_t{1} << 22);
  const std::vector<int> wanted{0x4e80, 0x4e81, 0x4e80, 0xce80, 0xce81, 0xce80};
  CHECK(bits_of(Tensor::from<std::int64_t>({middle, middle + 1, middle - 1, -middle, -middle - 1, -middle + 1})) == wanted);
  CHECK(bits_of(Tensor::from<std::int32_t>({middle, middle + 1, middle - 1, -middle, -middle - 1, -middle + 1})) == wanted);
  using Limits = std::numeric_limits<std::int64_t>;
  CHECK(bits_of(Tensor::from<std::int64_t>({Limits::max(), Limits::min(), 0, -1})) == std::vector<int>{0x5f00, 0xdf00, 0, 0xbf80});
  for (const std::uint64_t seed : seeds(200)) {
    Random random(seed);
    const std::int64_t value = random.between(Limits::min() / 2, Limits::max() / 2) >> random.between(0, 62);
    INFO("value ", value);
    const std::int64_t found = static_cast<std::int64_t>(
        static_cast<float>(bfloat16::from_bits(static_cast<std::uint16_t>(bits_of(Tensor::from<std::int64_t>({value}))[0]))));
    // No bf16 lies nearer.
    for (const int other : {-1, 1}) {
      const std::uint16_t near = static_cast<std::uint16_t>(bits_of(Tensor::from<std::int64_t>({value}))[0] + other);
      const auto beside = static_cast<std::int64_t>(static_cast<float>(bfloat16::from_bits(near)));
      if (value != 0) CHECK(std::abs(found - value) <= std::abs(beside - value));
    }
  }
  CHECK(cast(Tensor::from<std::int64_t>({2049, 65519, 65520}), DType::f16, device.stream(0)).to_vector<float16>()[1].bits == 0x7bff);
}

TEST_CASE("halves and floats that lie side by side convert as each alone, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice device;
    Random random(9);
    for (const DType narrow : {DType::f16, DType::bf16}) {
      const auto compare = [&](const auto& like) {
        using Half = std::remove_cvref_t<decltype(like)>;
        std::vector<Half> halves;
        for (int bits = 0; bits < 1 << 16; ++bits) halves.push_back(Half::from_bits(static_cast<std::uint16_t>(bits)));
        halves.resize(halves.size() - 3);  // no whole vectors
        const Tensor given = Tensor::from(halves, DDim{std::ssize(halves)});
        const std::vector<float> wide = cast(given, DType::f32, device.stream(0)).to_vector<float>();
        bool same = true;
        for (std::size_t i = 0; i < halves.size(); ++i)
          same = same && std::bit_cast<std::uint32_t>(wide[i]) == std::bit_cast<std::uint32_t>(convert_element<float>(halves[i]));
        CHECK(same);
        std::vector<float> floats;
        // The ends of what f16 holds: infinity, the least normal, the least subnormal and half of it, ties, and NaNs that signal.
        for (const std::uint32_t bits : {0x477fefffu, 0x477ff000u, 0x38800000u, 0x387fffffu, 0x33800000u, 0x33000000u, 0x33000001u,
                                         0x3f801000u, 0x3f803000u, 0x7f800001u, 0xffbfffffu, 0x00000001u})
          floats.push_back(std::bit_cast<float>(bits));
        for (int i = 0; i < 100003; ++i)
          floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random.between(0, (std::int64_t{1} << 32) - 1))));
        const auto made = cast(Tensor::from(floats, DDim{std::ssize(floats)}), narrow, device.stream(0)).template to_vector<Half>();
        for (std::size_t i = 0; i < floats.size(); ++i) same = same && made[i].bits == convert_element<Half>(floats[i]).bits;
        CHECK(same);
      };
      narrow == DType::f16 ? compare(float16()) : compare(bfloat16());
    }
  });
}

TEST_CASE("a strided view is cast, and one of that dtype is given back as it is") {
  CpuDevice device;
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, DDim{2, 3}).permute({1, 0});
  CHECK(cast(x, DType::i32, device.stream(0)).to_vector<std::int32_t>() == std::vector<std::int32_t>{1, 4, 2, 5, 3, 6});
  CHECK(cast(x, DType::f32, device.stream(0)).raw() == x.raw());
  Tensor wrong(DType::i32, DDim{2, 3});
  CHECK_THROWS_AS(cast(x, wrong, device.stream(0)), ShapeError);
}

}  // namespace millrace::testing
