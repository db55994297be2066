// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/admin/metric.h>

#include <limits>

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

namespace millrace {
namespace {

prometheus::MetricType type_of(Metric::Kind kind) {
  switch (kind) {
    case Metric::Kind::counter: return prometheus::MetricType::Counter;
    case Metric::Kind::gauge: return prometheus::MetricType::Gauge;
    case Metric::Kind::histogram: return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

prometheus::ClientMetric::Histogram cumulative(const Histogram& histogram) {
  prometheus::ClientMetric::Histogram made;
  made.sample_count = histogram.count();
  made.sample_sum = histogram.sum();
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < histogram.counts().size(); ++i) {
    prometheus::ClientMetric::Bucket bucket;
    bucket.cumulative_count = below += histogram.counts()[i];
    bucket.upper_bound = i < histogram.bounds().size() ? histogram.bounds()[i] : std::numeric_limits<double>::infinity();
    made.bucket.push_back(bucket);
  }
  return made;
}

prometheus::ClientMetric client_metric(const Metric& metric, const Metric::Sample& sample) {
  prometheus::ClientMetric made;
  for (const auto& [name, value] : sample.labels) made.label.push_back({name, value});
  if (metric.kind == Metric::Kind::counter) made.counter.value = sample.value;
  if (metric.kind == Metric::Kind::gauge) made.gauge.value = sample.value;
  if (sample.histogram) made.histogram = cumulative(*sample.histogram);
  return made;
}

}  // namespace

std::string metrics_text(const std::vector<Metric>& metrics) {
  std::vector<prometheus::MetricFamily> families;
  for (const Metric& metric : metrics) {
    prometheus::MetricFamily family;
    family.name = metric.name;
    family.help = metric.help;
    family.type = type_of(metric.kind);
    for (const Metric::Sample& sample : metric.samples) family.metric.push_back(client_metric(metric, sample));
    families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace millrace
