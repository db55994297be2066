// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/base64.h>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>
#include <support/random_tensor.h>

using namespace millrace;
using namespace millrace::testing;

TEST_CASE("bytes become the letters of RFC 4648, and those become the bytes") {
  const std::pair<const char*, const char*> table[] = {
      {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"fooba", "Zm9vYmE="}, {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : table) {
    CHECK(base64(bytes) == text);
    CHECK(from_base64(text) == bytes);
    CHECK(base64_size(std::string_view(bytes).size()) == std::string_view(text).size());
  }
  for (const std::uint64_t seed : seeds(100)) {
    INFO("seed ", seed);
    Random random(seed);
    std::string bytes(static_cast<std::size_t>(random.between(0, 300)), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.between(0, 255));
    CHECK(from_base64(base64(bytes)) == bytes);
  }
}

TEST_CASE("text that no bytes become is refused") {
  for (const char* text : {"Z", "Zg", "Zg=", "Zh==", "Zm9=", "====", "Zg==Zg==", "Zm9v\n", "Zm-v", "Z===", "=m9v"}) {
    INFO(text);
    CHECK_THROWS_AS(from_base64(text), ParseError);
  }
}
