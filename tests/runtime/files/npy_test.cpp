// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/npy.h>

#include <doctest/doctest.h>

#include <cstring>

#include <support/bytes.h>

#include <millrace/runtime/files/file.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

/// A file of that header, as NumPy writes it for a version, and elements.
std::string npy(const std::string& header, const std::string& elements, int version = 1) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  for (int byte = 0; byte < (version == 1 ? 2 : 4); ++byte) file += static_cast<char>(header.size() >> 8 * byte & 0xff);
  return file + header + elements;
}

std::string bytes_of(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST_CASE("Every dtype that npy has a code for reads back with its bits") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::i64, DType::i32, DType::i8, DType::u8, DType::boolean}) {
    INFO("dtype ", std::string(name_of(dtype)));
    for (const DDim& dims : {DDim{}, DDim{0}, DDim{3}, DDim{2, 3}, DDim{2, 0, 3}, DDim{1, 2, 1, 1, 2, 1, 1, 1, 2}}) {
      Tensor tensor(dtype, dims);
      tensor.storage()->mark_written();
      for (std::size_t at = 0; at < tensor.bytes(); ++at) static_cast<char*>(tensor.raw_mutable())[at] = static_cast<char>(at % 2);
      const Tensor back = parse_npy(format_npy(tensor), "x");
      CHECK(back.dtype() == dtype);
      CHECK(back.dims() == dims);
      CHECK(std::memcmp(back.raw(), tensor.raw(), tensor.bytes()) == 0);
    }
  }
}

TEST_CASE("A file is what NumPy writes, aligned to 64 bytes") {
  const std::string file = format_npy(Tensor::from<float>({1, 2}));
  CHECK(file.size() == 128 + 8);
  CHECK(file.substr(0, 10) == std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  CHECK(file.substr(10, 60).starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }  "));
  CHECK(file[127] == '\n');
}

TEST_CASE("A strided view is written in row-major order") {
  const testing::ScratchFolder folder;
  const Tensor x = Tensor::from<float>(std::vector<float>{1, 2, 3, 4, 5, 6}, DDim{2, 3});
  write_npy(folder / "x.npy", x.permute({1, 0}));
  const Tensor back = read_npy(folder / "x.npy");
  CHECK(back.dims() == DDim{3, 2});
  CHECK(back.to_vector<float>() == std::vector<float>{1, 4, 2, 5, 3, 6});
}

TEST_CASE("Versions 2 and 3, Fortran order, big-endian numbers and other spellings of the header are read") {
  const std::vector<float> values{1, 4, 2, 5, 3, 6};
  for (const int version : {1, 2, 3}) {
    const Tensor x = parse_npy(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n", bytes_of(values), version), "x");
    CHECK(x.dims() == DDim{2, 3});
    CHECK(x.is_contiguous());
    CHECK(x.to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6});
  }
  const Tensor big =
      parse_npy(npy("{\"shape\":(2,),\"descr\":\">i4\",\"fortran_order\":False}", std::string("\0\0\1\2\xff\xff\xff\xff", 8)), "x");
  CHECK(big.to_vector<std::int32_t>() == std::vector<std::int32_t>{258, -1});
  CHECK(parse_npy(npy("{'descr': '|i1', 'fortran_order': False, 'shape': ()}", "\x05"), "x").item() == 5);
}

TEST_CASE("Integers that no dtype has are read as wider ones, and one that does not fit is an error") {
  const auto integers = [](const std::string& descr, const std::string& elements) {
    return parse_npy(npy("{'descr': '" + descr + "', 'fortran_order': False, 'shape': (2,)}", elements), "x.npy");
  };
  CHECK(integers("<i2", std::string("\1\0\xff\xff", 4)).to_vector<std::int32_t>() == std::vector<std::int32_t>{1, -1});
  CHECK(integers(">u2", std::string("\0\1\xff\xff", 4)).to_vector<std::int32_t>() == std::vector<std::int32_t>{1, 65535});
  CHECK(integers("<u4", std::string("\1\0\0\0\xff\xff\xff\xff", 8)).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 4294967295});
  const std::string one("\1\0\0\0\0\0\0\0", 8);
  CHECK(integers("<u8", one + one).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 1});
  CHECK_THROWS_WITH_AS(integers("<u8", one + std::string(8, '\xff')), doctest::Contains("fit i64, found 18446744073709551615"),
                       OverflowError);
}

TEST_CASE("What npy cannot hold is refused by name") {
  Tensor bf16(DType::bf16, DDim{2});
  bf16.storage()->mark_written();
  CHECK_THROWS_WITH_AS(format_npy(bf16), doctest::Contains("found bf16: cast to f32"), DTypeError);
  const auto typed = [](const std::string& descr) {
    return npy("{'descr': " + descr + ", 'fortran_order': False, 'shape': (1,)}", "12345678");
  };
  CHECK_THROWS_WITH_AS(parse_npy(typed("'<c8'"), "x.npy"), doctest::Contains("x.npy: expected npy elements of f8"), DTypeError);
  CHECK_THROWS_WITH_AS(parse_npy(typed("'|O'"), "x.npy"), doctest::Contains("found '|O'"), DTypeError);
  CHECK_THROWS_WITH_AS(parse_npy(typed("[('a', '<f4')]"), "x.npy"), doctest::Contains("structured"), DTypeError);
}

TEST_CASE("Headers that lie are one clear error and allocate nothing") {
  const auto shaped = [](const std::string& shape) {
    return npy("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + "}", "1234");
  };
  CHECK_THROWS_WITH_AS(parse_npy(shaped("(2,)"), "x"), "x: expected 8 bytes for f32[2], found 4", ParseError);
  CHECK_THROWS_AS(parse_npy(shaped("(0,)"), "x"), ParseError);
  CHECK_THROWS_AS(parse_npy(shaped("(1000000000000,)"), "x"), ParseError);
  CHECK_THROWS_AS(parse_npy(shaped("(4294967296, 4294967296)"), "x"), ParseError);
  CHECK_THROWS_AS(parse_npy(shaped("(0, 4294967296, 4294967296)"), "x"), ParseError);
  CHECK_THROWS_AS(parse_npy(shaped("(99999999999999999999,)"), "x"), ParseError);
  CHECK_THROWS_AS(parse_npy(shaped("(-1,)"), "x"), ParseError);
  CHECK_THROWS_AS(parse_npy(shaped("(1)"), "x"), ParseError);
  CHECK_THROWS_AS(parse_npy(shaped("(1,1,1,1,1,1,1,1,1,1)"), "x"), ParseError);
  CHECK_THROWS_AS(parse_npy(npy("{'descr': '<f4', 'shape': (1,)}", "1234"), "x"), ParseError);
  CHECK_THROWS_AS(parse_npy(npy("{'shape': (1,), 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "1234"), "x"), ParseError);
  CHECK_THROWS_AS(parse_npy(npy("{'descr': '|b1', 'fortran_order': False, 'shape': (1,)}", "\x02"), "x"), ParseError);
  CHECK_THROWS_AS(parse_npy(npy("{", "", 4), "x"), ParseError);
  CHECK_THROWS_AS(parse_npy(std::string("\x93NUMPY\x02\0\xff\xff\xff\xff", 12), "x"), ParseError);
  CHECK_THROWS_AS(parse_npy("", "x"), ParseError);
}

TEST_CASE("A damaged file is read or refused and never more") {
  const std::string whole = format_npy(Tensor::from<float>(std::vector<float>{1, 2, 3, 4, 5, 6}, DDim{2, 3}));
  for (const std::uint64_t seed : testing::seeds(3000)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    const std::string bytes = testing::damaged(whole, random);
    try {
      const Tensor tensor = parse_npy(bytes, "x");
      CHECK(tensor.bytes() <= bytes.size());
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
}

}  // namespace
}  // namespace millrace
