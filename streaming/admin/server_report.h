// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/streaming/admin/metric.h>
#include <millrace/streaming/live/server.h>

/// Reports of a server for its operators. Call these functions on the thread of the server's context.
namespace millrace {

/// Names begin with `millrace_`; docs/operations.md has the list.
std::vector<Metric> metrics_of(const Server& server);
/// {"sessions": [{"number", "address", "session", "model", "steps", "waiting_rows", "seconds"}, …]}, in the order in which they connected.
std::string sessions_json(const Server& server);
/// {"sessions", "max_sessions", "newcomers", "waiting_rows", "used", "draining", "models"}, and of each model {"model", "sessions", "waiting_rows",
/// "rows_per_second", "steps_per_second", "steps_asked"}: `rows_per_second` is what its places hold by the time that their ticks took lately, null before
/// the first. The last three stand in the outer object as well, for the default model.
std::string capacity_json(const Server& server);

}  // namespace millrace
