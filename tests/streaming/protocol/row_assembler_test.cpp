// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/row_assembler.h>

#include <doctest/doctest.h>

#include <millrace/streaming/protocol/error_code.h>
#include <support/pieces.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

std::string random_bytes(std::size_t size, Random& random) {
  std::string bytes(size, ' ');
  for (char& c : bytes) c = static_cast<char>(random.next());
  return bytes;
}

void pop_into(std::string& out, RowAssembler& rows, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    const auto row = rows.row(k);
    out.append(reinterpret_cast<const char*>(row.data()), row.size());
  }
  rows.pop(count);
}

}  // namespace

TEST_CASE("rows come out whole and in order wherever their bytes were cut, within the capacity") {
  for (const auto seed : seeds(200)) {
    INFO("seed ", seed);
    Random random(seed);
    const DType dtypes[] = {DType::f64, DType::f32, DType::bf16, DType::i64, DType::u8};
    const DType dtype = dtypes[random.between(0, 4)];
    const DDim dims = random.coin() ? DDim{random.between(1, 9)} : DDim{};
    const std::size_t row_bytes = static_cast<std::size_t>(dims.elements()) * size_of(dtype);
    const std::size_t capacity = static_cast<std::size_t>(random.between(1, 200));
    RowAssembler rows("x", dtype, dims, capacity);
    CHECK(rows.row_bytes() == row_bytes);
    const std::string sent = random_bytes(row_bytes * static_cast<std::size_t>(random.between(0, 40)), random);
    std::string received;
    for (auto piece : cut_anywhere(bytes_of(sent), random)) {
      while (!piece.empty()) {
        piece = piece.subspan(rows.feed(piece));
        CHECK(rows.held_bytes() <= std::max(capacity, row_bytes));
        if (!piece.empty()) REQUIRE(rows.rows() > 0);
        pop_into(received, rows, static_cast<std::size_t>(random.between(piece.empty() ? 0 : 1, static_cast<std::int64_t>(rows.rows()))));
      }
    }
    rows.end();
    pop_into(received, rows, rows.rows());
    CHECK(received == sent);
    CHECK(rows.ended());
    CHECK(rows.held_bytes() == 0);
  }
}

TEST_CASE("an end inside a row, and data after the end, are named") {
  RowAssembler rows("x", DType::f32, DDim{2});
  rows.feed(bytes_of("123456789"));
  CHECK(rows.rows() == 1);
  CHECK_THROWS_WITH_AS(rows.end(), "input 'x': expected whole rows of 8 bytes, found 1 bytes of one at the end", ProtocolError);
  rows.feed(bytes_of("0123456"));
  rows.end();
  CHECK(rows.rows() == 2);
  CHECK_THROWS_AS(rows.feed(bytes_of("1")), ProtocolError);
}

TEST_CASE("a bool is 0 or 1") {
  RowAssembler rows("flag", DType::boolean, DDim{});
  CHECK(rows.feed(bytes_of(std::string("\0\1\1", 3))) == 3);
  CHECK_THROWS_WITH_AS(rows.feed(bytes_of(std::string("\2", 1))), "input 'flag': expected a bool of 0 or 1, found the byte 2",
                       ProtocolError);
  CHECK(rows.rows() == 3);
}

TEST_CASE("rows without elements or of unknown extents, and rows that are not there, are refused") {
  CHECK_THROWS_AS(RowAssembler("x", DType::f32, DDim{0}), ShapeError);
  CHECK_THROWS_AS(RowAssembler("x", DType::f32, DDim{DDim::unknown, 2}), ShapeError);
  CHECK_THROWS_AS(RowAssembler("x", DType::f32, DDim{1ll << 40, 1ll << 40}), Error);
  RowAssembler rows("x", DType::u8, DDim{2});
  rows.feed(bytes_of("abc"));
  CHECK_THROWS_AS(rows.row(1), IndexError);
  CHECK_THROWS_AS(rows.pop(2), IndexError);
}
