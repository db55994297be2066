// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/admin/metric.h>

#include <millrace/tensor/error.h>

namespace millrace {

std::string metrics_text(const std::vector<Metric>&) {
  throw UnsupportedError("metrics: this build has no prometheus-cpp (MILLRACE_PROMETHEUS, Debian package prometheus-cpp-dev)");
}

}  // namespace millrace
