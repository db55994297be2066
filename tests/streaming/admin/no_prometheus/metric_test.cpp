// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/admin/metric.h>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>

using namespace millrace;

TEST_CASE("without prometheus-cpp, metrics are refused by the name of what is missing") {
  CHECK_THROWS_WITH_AS(metrics_text({}), doctest::Contains("MILLRACE_PROMETHEUS"), UnsupportedError);
}
