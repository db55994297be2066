// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/safetensors.h>

#include <doctest/doctest.h>

#include <cstring>

#include <support/bytes.h>

#include <millrace/tensor/error.h>

namespace millrace {
namespace {

std::string file(const std::string& header, const std::string& elements = "") {
  std::string bytes;
  for (int byte = 0; byte < 8; ++byte) bytes += static_cast<char>(header.size() >> 8 * byte & 0xff);
  return bytes + header + elements;
}

std::string one(const std::string& entry, const std::string& elements = "12345678") { return file("{\"x\":" + entry + "}", elements); }

SafeTensors sample() {
  SafeTensors contents;
  for (const DType dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i8, DType::u8, DType::boolean}) {
    Tensor tensor(dtype, DDim{2, 3});
    tensor.storage()->mark_written();
    for (std::size_t at = 0; at < tensor.bytes(); ++at) static_cast<char*>(tensor.raw_mutable())[at] = static_cast<char>(at % 2);
    contents.tensors.emplace_back("of " + std::string(name_of(dtype)), tensor);
  }
  contents.tensors.emplace_back("empty \"\\\n\xd1\x8f", Tensor::from<float>({}));
  contents.tensors.emplace_back("scalar", Tensor::scalar<std::int64_t>(-7));
  contents.metadata = {{"format", "millrace"}, {"note", "two\nlines"}};
  return contents;
}

TEST_CASE("Every dtype, empty tensors, scalars, odd names and metadata survive a file") {
  const testing::ScratchFolder folder;
  const SafeTensors contents = sample();
  write_safetensors(folder / "x.safetensors", contents);
  const SafeTensors back = read_safetensors(folder / "x.safetensors");
  CHECK(back.metadata == contents.metadata);
  REQUIRE(back.tensors.size() == contents.tensors.size());
  for (const auto& [name, tensor] : contents.tensors) {
    INFO("tensor ", name);
    const Tensor* found = back.find(name);
    REQUIRE(found != nullptr);
    CHECK(found->dtype() == tensor.dtype());
    CHECK(found->dims() == tensor.dims());
    CHECK(std::memcmp(found->raw(), tensor.raw(), tensor.bytes()) == 0);
  }
  CHECK(back.find("none") == nullptr);
}

TEST_CASE("A strided view is written in row-major order") {
  SafeTensors contents;
  contents.tensors.emplace_back("t", Tensor::from<float>(std::vector<float>{1, 2, 3, 4}, DDim{2, 2}).permute({1, 0}));
  CHECK(parse_safetensors(format_safetensors(contents), "x").tensors[0].second.to_vector<float>() == std::vector<float>{1, 3, 2, 4});
}

TEST_CASE("A header in any order and with escapes is read") {
  const SafeTensors contents = parse_safetensors(
      file(
          R"({"b":{"data_offsets":[1,2],"shape":[],"dtype":"U8"}, "\u00e9\ud83d\ude00\/":{"dtype":"I8","shape":[1,1],"data_offsets":[0,1]} })",
          "\1\2"),
      "x");
  REQUIRE(contents.tensors.size() == 2);
  CHECK(contents.tensors[0].first == "\xc3\xa9\xf0\x9f\x98\x80/");
  CHECK(contents.find("b")->item() == 2);
  CHECK(parse_safetensors(file("{}  "), "x").tensors.empty());
}

TEST_CASE("Integers that no dtype has are read as wider ones, and one that does not fit is an error") {
  const auto read = [](const std::string& code, const std::string& shape, const std::string& elements) {
    return parse_safetensors(one(R"({"dtype":")" + code + R"(","shape":)" + shape + R"(,"data_offsets":[0,8]})", elements), "x")
        .tensors.at(0)
        .second;
  };
  const std::string ones(8, '\xff');
  CHECK(read("I16", "[4]", ones).to_vector<std::int32_t>() == std::vector<std::int32_t>(4, -1));
  CHECK(read("U16", "[4]", ones).to_vector<std::int32_t>() == std::vector<std::int32_t>(4, 65535));
  CHECK(read("U32", "[2]", ones).to_vector<std::int64_t>() == std::vector<std::int64_t>(2, 4294967295));
  CHECK_THROWS_WITH_AS(read("U64", "[1]", ones), doctest::Contains("tensor 'x': expected integers that fit i64"), OverflowError);
}

TEST_CASE("Headers that lie are one clear error") {
  CHECK_THROWS_WITH_AS(parse_safetensors("1234", "x"), "x: expected a safetensors file, found 4 bytes", ParseError);
  CHECK_THROWS_WITH_AS(parse_safetensors(std::string(8, '\xff'), "x"), doctest::Contains("header of at most 0 bytes"), ParseError);
  CHECK_THROWS_WITH_AS(parse_safetensors(file(" {}"), "x"), doctest::Contains("expected '{'"), ParseError);
  CHECK_THROWS_AS(parse_safetensors(file("{} x"), "x"), ParseError);
  CHECK_THROWS_AS(parse_safetensors(file("{}", "1"), "x"), ParseError);
  CHECK_THROWS_AS(parse_safetensors(file("{\"a\":{\"dtype\":\"I8\",\"shape\":[\"\xff\"]}}"), "x"), ParseError);
  CHECK_THROWS_WITH_AS(parse_safetensors(file(R"({"__metadata__":{"a":"1","a":"2"}})"), "x"), doctest::Contains("'a' twice"), ParseError);
  CHECK_THROWS_AS(parse_safetensors(file(R"({"__metadata__":{"a":{"b":{"c":{"d":"e"}}}}})"), "x"), ParseError);
  CHECK_THROWS_AS(parse_safetensors(file("{\"a\xc0\xaf\":{}}"), "x"), ParseError);
  CHECK_THROWS_AS(parse_safetensors(file(R"({"\ud800":{}})"), "x"), ParseError);
  CHECK_THROWS_AS(parse_safetensors(one(R"({"dtype":"F32","shape":[2]})"), "x"), ParseError);
  CHECK_THROWS_AS(parse_safetensors(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1})"), "x"), ParseError);
}

TEST_CASE("Offsets leave no hole and no overlap, and sizes are what shapes say") {
  CHECK_NOTHROW(parse_safetensors(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), "x"));
  CHECK_THROWS_WITH_AS(parse_safetensors(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "x"),
                       "x: tensor 'x': expected 12 bytes for f32[3], found 8", ParseError);
  for (const std::string offsets :
       {"[1,8]", "[0,7]", "[0,9]", "[8,0]", "[0,-8]", "[0,08]", "[0,8.0]", "[0,99999999999999999999]", "[0]", "[0,8,8]"}) {
    INFO("offsets ", offsets);
    CHECK_THROWS_AS(parse_safetensors(one(R"({"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}"), "x"), ParseError);
  }
  CHECK_THROWS_AS(parse_safetensors(one(R"({"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,8]})"), "x"), ParseError);
  CHECK_THROWS_AS(
      parse_safetensors(one(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8]},"y":{"dtype":"U8","shape":[4],"data_offsets":[4,8]})"), "x"),
      ParseError);
  CHECK_THROWS_WITH_AS(parse_safetensors(one(R"({"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]})"), "x"),
                       doctest::Contains("found 'F8_E4M3'"), DTypeError);
}

TEST_CASE("What the format cannot hold is refused when it is written") {
  SafeTensors contents;
  contents.tensors = {{"a", Tensor::scalar(1.0f)}, {"a", Tensor::scalar(1.0f)}};
  CHECK_THROWS_WITH_AS(format_safetensors(contents), doctest::Contains("'a' twice"), ArgumentError);
  contents.tensors = {{"__metadata__", Tensor::scalar(1.0f)}};
  CHECK_THROWS_AS(format_safetensors(contents), ArgumentError);
  contents.tensors = {{"\xff", Tensor::scalar(1.0f)}};
  CHECK_THROWS_AS(format_safetensors(contents), ArgumentError);
}

TEST_CASE("A damaged file is read or refused and never more") {
  const std::string whole = format_safetensors(sample());
  for (const std::uint64_t seed : testing::seeds(3000)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    const std::string bytes = testing::damaged(whole, random);
    try {
      for (const auto& [name, tensor] : parse_safetensors(bytes, "x").tensors) CHECK(tensor.bytes() <= bytes.size());
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
}

}  // namespace
}  // namespace millrace
