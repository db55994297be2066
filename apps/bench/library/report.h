// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <bench/library/row.h>

namespace millrace::bench {

/// The heading of the table, and one line of it; both end with a line feed.
std::string table_heading();
std::string table_line(const Row& row);

/// `{"device": …, "rows": [{"id", "shape", "ours", "peer", "peer_name", "ratio", "goal", "floor"}]}`; a figure that is missing is null, and
/// `note` stands in the rows that have one. Seconds, bytes or streams, as the row's unit is.
std::string rows_as_json(const std::string& device, const std::vector<Row>& rows);

/// One drawing for each panel of the rows: ours and each peer over x, both axes logarithmic; rows without a panel or with a figure missing
/// are left out. Text of an SVG file, also when there is nothing to draw.
std::string rows_as_svg(const std::string& device, const std::vector<Row>& rows);

}  // namespace millrace::bench
