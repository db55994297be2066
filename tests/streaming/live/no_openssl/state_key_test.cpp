// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/state_key.h>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>

using namespace millrace;

TEST_CASE("without the part openssl no key is made, and the error names the part") {
  CHECK_THROWS_WITH_AS(StateKey::random(), doctest::Contains("libssl-dev"), UnsupportedError);
  CHECK_THROWS_WITH_AS(StateKey(std::string(32, 'k')), doctest::Contains("openssl"), UnsupportedError);
}
