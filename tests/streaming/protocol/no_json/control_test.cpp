// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/control.h>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("without the part json control messages throw and name it") {
  CHECK_THROWS_WITH_AS(to_json(StartMessage()), doctest::Contains("MILLRACE_JSON"), UnsupportedError);
  CHECK_THROWS_WITH_AS(parse_client_message("{}"), doctest::Contains("MILLRACE_JSON"), UnsupportedError);
}
