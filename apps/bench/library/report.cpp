// SPDX-License-Identifier: Apache-2.0
#include <bench/library/report.h>

#include <cmath>

#include <fmt/format.h>

namespace millrace::bench {
namespace {

std::string figure(const std::optional<double>& value, Unit unit) {
  if (!value) return "-";
  if (unit == Unit::bytes) return *value < 10240 ? fmt::format("{:.0f} B", *value) : fmt::format("{:.1f} MiB", *value / (1 << 20));
  if (unit == Unit::streams) return fmt::format("{:.0f}", *value);
  if (*value < 1e-6) return fmt::format("{:.1f} ns", *value * 1e9);
  return *value < 1e-2 ? fmt::format("{:.1f} us", *value * 1e6) : fmt::format("{:.1f} ms", *value * 1e3);
}

std::string plain(const std::optional<double>& value) { return value ? fmt::format("{:.2f}", *value) : "-"; }

std::string json_text(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      quoted += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20)
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    else
      quoted += c;
  }
  return quoted + '"';
}

std::string json_number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? fmt::format("{:.9g}", *value) : "null";
}

}  // namespace

std::string table_heading() {
  return fmt::format("{:<9} {:<58} {:>10} {:>10} {:>6} {:>5} {:>10} {:>5}  {}\n", "id", "shape", "ours", "peer", "ratio", "goal", "floor",
                     "of it", "peer, note");
}

std::string table_line(const Row& row) {
  const std::string note = row.note.empty() ? "" : (row.peer_name.empty() ? "" : "; ") + row.note;
  return fmt::format("{:<9} {:<58} {:>10} {:>10} {:>6} {:>5} {:>10} {:>5}  {}{}\n", row.id, row.shape, figure(row.ours, row.unit),
                     figure(row.peer, row.unit), plain(row.ratio()), plain(row.goal), figure(row.floor, row.unit),
                     plain(row.fraction_of_floor()), row.peer_name, note);
}

std::string rows_as_json(const std::string& device, const std::vector<Row>& rows) {
  std::string text = "{\"device\": " + json_text(device) + ", \"rows\": [";
  const char* separator = "\n";
  for (const Row& row : rows) {
    text += fmt::format("{} {{\"id\": {}, \"shape\": {}, \"ours\": {}, \"peer\": {}, \"peer_name\": {}, \"ratio\": {}, \"goal\": {}, ",
                        separator, json_text(row.id), json_text(row.shape), json_number(row.ours), json_number(row.peer),
                        json_text(row.peer_name), json_number(row.ratio()), json_number(row.goal));
    text += fmt::format("\"floor\": {}{}}}", json_number(row.floor), row.note.empty() ? "" : ", \"note\": " + json_text(row.note));
    separator = ",\n";
  }
  return text + "\n]}\n";
}

}  // namespace millrace::bench
