// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/internal/inflate.h>

#include <zlib.h>

#include <string>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>

#include "support/random.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

std::string deflated(const std::string& text) {
  z_stream z{};
  REQUIRE(deflateInit2(&z, Z_BEST_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string made(deflateBound(&z, text.size()), '\0');
  std::string in = text;
  z.next_in = reinterpret_cast<Bytef*>(in.data());
  z.avail_in = static_cast<uInt>(in.size());
  z.next_out = reinterpret_cast<Bytef*>(made.data());
  z.avail_out = static_cast<uInt>(made.size());
  REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
  made.resize(z.total_out);
  deflateEnd(&z);
  return made;
}

}  // namespace

TEST_CASE("deflated bytes come back, whatever they are") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed);
    std::string text;
    for (std::int64_t left = random.between(0, 3000); left > 0; --left)
      text.append(static_cast<std::size_t>(random.between(0, 40)), static_cast<char>(random.next() % 7));
    CHECK(internal::inflate(deflated(text), text.size(), "member") == text);
  }
}

TEST_CASE("another size, an end that is cut off and bytes behind the end are refused") {
  const std::string text(1000, 'a');
  const std::string bytes = deflated(text);
  for (const std::size_t size : {std::size_t{0}, std::size_t{999}, std::size_t{1001}})
    CHECK_THROWS_AS(internal::inflate(bytes, size, "member"), ParseError);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    CHECK_THROWS_AS(internal::inflate(bytes.substr(0, length), 1000, "member"), ParseError);
  CHECK_THROWS_WITH_AS(internal::inflate(bytes + "x", 1000, "member"), doctest::Contains("member: expected deflated bytes"), ParseError);
}
