// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/admin/metric.h>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("counters, gauges and histograms become the text that Prometheus reads") {
  Histogram histogram{0.5, 1};
  for (const double value : {0.25, 0.5, 1.0, 7.0}) histogram.observe(value);
  const std::vector<Metric> metrics{{"a_total", "How many.", Metric::Kind::counter, {{{{"place", "cpu \"0\"\n"}}, 3, {}}, {{}, 0.5, {}}}},
                                    {"b", "Now.", Metric::Kind::gauge, {{{}, -2, {}}}},
                                    {"c_seconds", "How long.", Metric::Kind::histogram, {{{}, 0, histogram}}},
                                    {"d", "Nobody.", Metric::Kind::gauge}};
  CHECK(metrics_text(metrics) ==
        "# HELP a_total How many.\n# TYPE a_total counter\na_total{place=\"cpu \\\"0\\\"\\n\"} 3\na_total 0.5\n"
        "# HELP b Now.\n# TYPE b gauge\nb -2\n"
        "# HELP c_seconds How long.\n# TYPE c_seconds histogram\nc_seconds_count 4\nc_seconds_sum 8.75\n"
        "c_seconds_bucket{le=\"0.5\"} 2\nc_seconds_bucket{le=\"1\"} 3\nc_seconds_bucket{le=\"+Inf\"} 4\n"
        "# HELP d Nobody.\n# TYPE d gauge\n");
}
