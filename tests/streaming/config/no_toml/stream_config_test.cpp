// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/config/stream_config.h>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>

using namespace millrace;

TEST_CASE("without the part toml a config throws and names it") {
  CHECK_THROWS_WITH_AS(parse_stream_config("", "m.toml"), doctest::Contains("MILLRACE_TOML"), UnsupportedError);
}
