// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/fluid.h>

#include <doctest/doctest.h>

#include <cstring>

#include <millrace/runtime/files/file.h>
#include <millrace/tensor/error.h>
#include <support/bytes.h>
#include <support/fluid_bytes.h>

namespace millrace {
namespace {

using testing::bytes_of;
using testing::fluid_bytes;

std::string floats(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) bytes += bytes_of(value);
  return bytes;
}

TEST_CASE("A tensor of Fluid is read with its extents packed or one by one, and with its LoD") {
  for (const bool packed : {false, true}) {
    const LoDTensor x = parse_fluid_tensor(fluid_bytes(5, {3, 2}, floats({1, 2, 3, 4, 5, 6}), {{0, 1, 1, 2}, {0, 2, 3}}, packed), "x");
    CHECK(x.dims() == DDim{3, 2});
    CHECK(x.tensor().to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6});
    CHECK(x.lod() == LoD::from_lengths({{1, 0, 1}, {2, 1}}));
  }
  CHECK(parse_fluid_tensor(fluid_bytes(5, {}, floats({7})), "x").tensor().item() == 7);
  CHECK(parse_fluid_tensor(fluid_bytes(5, {0, 4}, ""), "x").dims() == DDim{0, 4});
}

TEST_CASE("The bytes of a real file are read") {
  // gru_0.b_0 of a LAC model begins so; of [1, 384] one element stands here.
  const std::string file("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x06\0\0\0\x08\x05\x10\x01\x10\x01\x0e\x86\xfe\x3f", 30);
  const LoDTensor x = parse_fluid_tensor(file, "gru_0.b_0");
  CHECK(x.dims() == DDim{1, 1});
  CHECK(x.lod().empty());
  CHECK(x.tensor().item() == doctest::Approx(1.98846602));
}

TEST_CASE("Every element type that Fluid numbers and this library has is read, others are named") {
  const std::pair<std::uint64_t, DType> known[] = {{0, DType::boolean}, {2, DType::i32}, {3, DType::i64}, {4, DType::f16},  {5, DType::f32},
                                                   {6, DType::f64},     {20, DType::u8}, {21, DType::i8}, {22, DType::bf16}};
  for (const auto& [number, dtype] : known) {
    const std::string elements(2 * size_of(dtype), '\1');
    const LoDTensor x = parse_fluid_tensor(fluid_bytes(number, {2}, elements), "x");
    CHECK(x.dtype() == dtype);
    CHECK(std::memcmp(x.tensor().raw(), elements.data(), elements.size()) == 0);
  }
  CHECK_THROWS_WITH_AS(parse_fluid_tensor(fluid_bytes(1, {1}, "12"), "w"), doctest::Contains("w: expected elements of FP64"), DTypeError);
  CHECK_THROWS_WITH_AS(parse_fluid_tensor(fluid_bytes(19, {1}, "12345678"), "w"), doctest::Contains("found Fluid's type 19"), DTypeError);
}

TEST_CASE("A combined file gives its tensors in order, and a single one refuses more") {
  const std::string two = fluid_bytes(5, {1}, floats({1})) + fluid_bytes(3, {1}, bytes_of<std::int64_t>(2));
  const std::vector<LoDTensor> both = parse_fluid_tensors(two, "x");
  REQUIRE(both.size() == 2);
  CHECK(both[0].tensor().item() == 1);
  CHECK(both[1].dtype() == DType::i64);
  CHECK(parse_fluid_tensors("", "x").empty());
  CHECK_THROWS_WITH_AS(parse_fluid_tensor(two, "x"), doctest::Contains("x: expected one tensor"), ParseError);
  const testing::ScratchFolder folder;
  write_file(folder / "fc_0.w_0", two);
  CHECK(read_fluid_tensors(folder / "fc_0.w_0").size() == 2);
  CHECK_THROWS_WITH_AS(read_fluid_tensor(folder / "fc_0.w_0"), doctest::Contains("fc_0.w_0: expected one tensor"), ParseError);
}

TEST_CASE("A file cut at any byte is one clear error") {
  const std::string whole = fluid_bytes(5, {3, 2}, floats({1, 2, 3, 4, 5, 6}), {{0, 1, 2}, {0, 2, 3}});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO("cut to ", size);
    CHECK_THROWS_AS(parse_fluid_tensor(whole.substr(0, size), "x"), ParseError);
  }
}

TEST_CASE("Sizes that lie are refused before anything is allocated") {
  const std::string four = floats({1});
  CHECK_THROWS_AS(parse_fluid_tensor(fluid_bytes(5, {1000000000000}, four), "x"), ParseError);
  CHECK_THROWS_AS(parse_fluid_tensor(fluid_bytes(5, {4294967296, 4294967296}, four), "x"), ParseError);
  CHECK_THROWS_AS(parse_fluid_tensor(fluid_bytes(5, {0, 4294967296, 4294967296}, four), "x"), ParseError);
  CHECK_THROWS_AS(parse_fluid_tensor(fluid_bytes(5, {-1}, four), "x"), ParseError);
  CHECK_THROWS_AS(parse_fluid_tensor(fluid_bytes(5, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, four), "x"), ParseError);
  CHECK_THROWS_WITH_AS(parse_fluid_tensor(fluid_bytes(5, {2}, four), "x"),
                       doctest::Contains("expected 8 bytes of elements of f32[2], found 4"), ParseError);
  const std::string levels = bytes_of<std::uint32_t>(0) + bytes_of<std::uint64_t>(1ull << 60) + std::string(64, '\0');
  CHECK_THROWS_WITH_AS(parse_fluid_tensor(levels, "x"), doctest::Contains("levels of LoD"), ParseError);
  const std::string offsets =
      bytes_of<std::uint32_t>(0) + bytes_of<std::uint64_t>(1) + bytes_of<std::uint64_t>(~0ull - 7) + std::string(64, '\0');
  CHECK_THROWS_WITH_AS(parse_fluid_tensor(offsets, "x"), doctest::Contains("bytes of offsets, found 64 left"), ParseError);
  const std::string odd = bytes_of<std::uint32_t>(0) + bytes_of<std::uint64_t>(1) + bytes_of<std::uint64_t>(7) + std::string(64, '\0');
  CHECK_THROWS_WITH_AS(parse_fluid_tensor(odd, "x"), doctest::Contains("whole offsets"), ParseError);
  const std::string negative = std::string(16, '\0') + bytes_of<std::int32_t>(-1) + std::string(64, '\0');
  CHECK_THROWS_WITH_AS(parse_fluid_tensor(negative, "x"), doctest::Contains("found one of -1 bytes"), ParseError);
}

TEST_CASE("Offsets that do not describe the rows, other versions and other fields are refused") {
  const std::string two = floats({1, 2});
  for (const std::vector<std::vector<std::uint64_t>>& lod : std::vector<std::vector<std::vector<std::uint64_t>>>{
           {{0, 1}}, {{1, 2}}, {{0, 2, 1, 2}}, {{}}, {{0, 3}, {0, 1, 2}}, {{0, ~0ull}}, {{0, 3}}})
    CHECK_THROWS_WITH_AS(parse_fluid_tensor(fluid_bytes(5, {2}, two, lod), "lod"), doctest::Contains("lod: "), ParseError);
  std::string version = fluid_bytes(5, {2}, two);
  version[0] = 1;
  CHECK_THROWS_WITH_AS(parse_fluid_tensor(version, "x"), doctest::Contains("version 0 of Fluid's LoD, found 1"), ParseError);
  version[0] = 0;
  version[12] = 2;
  CHECK_THROWS_WITH_AS(parse_fluid_tensor(version, "x"), doctest::Contains("version 0 of Fluid's tensor, found 2"), ParseError);
  const auto described = [&](const std::string& text) {
    return std::string(16, '\0') + bytes_of(static_cast<std::int32_t>(text.size())) + text + two;
  };
  CHECK(parse_fluid_tensor(described(std::string("\x10\x02\x08\x05", 4)), "x").dims() == DDim{2});
  CHECK_THROWS_AS(parse_fluid_tensor(described(""), "x"), ParseError);
  CHECK_THROWS_AS(parse_fluid_tensor(described("\x10\x02"), "x"), ParseError);
  CHECK_THROWS_AS(parse_fluid_tensor(described(std::string("\x08\x05\x18\x01\x10\x02", 6)), "x"), ParseError);
  CHECK_THROWS_AS(parse_fluid_tensor(described(std::string("\x08\x05\x12\x05\x02", 5)), "x"), ParseError);
  CHECK_THROWS_AS(parse_fluid_tensor(described("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), "x"), ParseError);
  CHECK_THROWS_AS(parse_fluid_tensor(described("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "x"), ParseError);
}

TEST_CASE("A damaged file of Fluid is read or refused and never more") {
  const std::string whole = fluid_bytes(5, {3, 2}, floats({1, 2, 3, 4, 5, 6}), {{0, 1, 2}, {0, 2, 3}}, true);
  for (const std::uint64_t seed : testing::seeds(3000)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    const std::string bytes = testing::damaged(whole, random);
    try {
      const LoDTensor x = parse_fluid_tensor(bytes, "x");
      CHECK(x.tensor().bytes() <= bytes.size());
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
}

}  // namespace
}  // namespace millrace
