// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/memory_policy_text.h>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>

using namespace millrace;

TEST_CASE("policies are read as they are written") {
  for (const std::string text : {"keep", "spill", "recompute(0)", "recompute(32)", "truncate(20, 60)"})
    CHECK(to_string(parse_memory_policy(text)) == text);
  CHECK(to_string(parse_memory_policy("recompute")) == "recompute(0)");
  CHECK(to_string(parse_memory_policy("truncate(20)")) == "truncate(20, 20)");
  CHECK(to_string(parse_memory_policy("truncate(2,4)")) == "truncate(2, 4)");
}

TEST_CASE("text that is no policy is refused with what it was") {
  for (const std::string text : {"", "keeps", "keep()", "recompute(", "recompute(x)", "recompute(1, 2)", "truncate", "truncate(1, 2, 3)",
                                 "truncate(0)", "truncate(3, 0)", "spill(1)"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse_memory_policy(text), doctest::Contains(("found '" + text + "'").c_str()), ArgumentError);
  }
}
