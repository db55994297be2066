// SPDX-License-Identifier: Apache-2.0
#include <bench/library/report.h>

#include <cmath>

#include <doctest/doctest.h>

using namespace millrace::bench;

namespace {

Row times(std::optional<double> ours, std::optional<double> peer) {
  Row row;
  row.id = "C3";
  row.shape = "64 steps, B8 H128 f32, 1 thread";
  row.peer_name = "oneDNN";
  row.goal = 1.05;
  row.ours = ours;
  row.peer = peer;
  return row;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("a ratio is the greater the better, for times, bytes and streams alike") {
  CHECK(*times(2e-6, 3e-6).ratio() == doctest::Approx(1.5));
  Row bytes = times(200, 500);
  bytes.unit = Unit::bytes;
  CHECK(*bytes.ratio() == doctest::Approx(2.5));
  Row streams = times(1200, 1000);
  streams.unit = Unit::streams;
  CHECK(*streams.ratio() == doctest::Approx(1.2));
  CHECK_FALSE(times(2e-6, {}).ratio());
  CHECK_FALSE(times({}, 3e-6).ratio());
  CHECK_FALSE(times(2e-6, 0.0).ratio());
}

TEST_CASE("the fraction of the floor is one where the machine can do no better") {
  Row row = times(4e-6, 3e-6);
  CHECK_FALSE(row.fraction_of_floor());
  row.floor = 1e-6;
  CHECK(*row.fraction_of_floor() == doctest::Approx(0.25));
}

TEST_CASE("the JSON of rows has the fields that the documentation names, and null with a note where a figure is missing") {
  Row measured = times(2e-6, 3e-6);
  measured.floor = 1e-6;
  Row missing = times(2e-6, {});
  missing.note = "no \"peer\"\n\\";
  Row infinite = times(HUGE_VAL, 1.0);
  infinite.goal.reset();
  CHECK(rows_as_json("A CPU, 2 CPUs", {measured, missing, infinite}) ==
        R"({"device": "A CPU, 2 CPUs", "rows": [
 {"id": "C3", "shape": "64 steps, B8 H128 f32, 1 thread", "ours": 2e-06, "peer": 3e-06, "peer_name": "oneDNN", "ratio": 1.5, "goal": 1.05, "floor": 1e-06},
 {"id": "C3", "shape": "64 steps, B8 H128 f32, 1 thread", "ours": 2e-06, "peer": null, "peer_name": "oneDNN", "ratio": null, "goal": 1.05, "floor": null, "note": "no \"peer\"\u000a\\"},
 {"id": "C3", "shape": "64 steps, B8 H128 f32, 1 thread", "ours": null, "peer": 1, "peer_name": "oneDNN", "ratio": 0, "goal": null, "floor": null}
]}
)");
  CHECK(rows_as_json("none", {}) == "{\"device\": \"none\", \"rows\": [\n]}\n");
}

TEST_CASE("a line of the table shows id, shape, ours, peer, ratio, goal, floor and the fraction of it") {
  Row row = times(2e-6, 3e-6);
  row.floor = 1e-6;
  const std::string line = table_line(row);
  for (const char* part : {"C3 ", "B8 H128", " 2.0 us", " 3.0 us", " 1.50 ", " 1.05 ", " 1.0 us", " 0.50 ", "  oneDNN\n"}) {
    INFO(line, " holds ", part);
    CHECK(line.find(part) != line.npos);
  }
  CHECK(table_line(times(50e-9, 2.0)).find(" 50.0 ns") != std::string::npos);
  CHECK(table_line(times(50e-9, 2.0)).find(" 2000.0 ms") != std::string::npos);
  Row bytes = times(500, 512 << 20);
  bytes.unit = Unit::bytes;
  CHECK(table_line(bytes).find(" 500 B  512.0 MiB ") != std::string::npos);
  Row missing = times({}, {});
  missing.note = "why";
  CHECK(table_line(missing).ends_with("  oneDNN; why\n"));
}

TEST_CASE("the plot has a drawing for each panel and a line for ours and for each peer") {
  std::vector<Row> rows;
  for (const char* panel : {"H 128", "H 256 <2>"})
    for (const double x : {1.0, 8.0, 64.0})
      for (const char* peer : {"oneDNN", "PyTorch & co"}) {
        Row row = times(1e-6 * x, 2e-6 * x);
        row.panel = panel;
        row.x = x;
        row.peer_name = peer;
        rows.push_back(row);
      }
  rows.push_back(times(1, 1));  // stands in no panel
  const std::string svg = rows_as_svg("A CPU", rows);
  CHECK(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(count(svg, "<g ") == 2);
  CHECK(count(svg, "</g>") == 2);
  CHECK(count(svg, "<polyline") == 6);
  CHECK(count(svg, "<circle") == 18);
  CHECK(count(svg, "H 256 &lt;2&gt;") == 1);
  CHECK(count(svg, "PyTorch &amp; co") == 2);
  CHECK(count(svg, "nan") + count(svg, "inf") == 0);
}

TEST_CASE("the plot of rows that were not measured, or of one point, is still a drawing without infinities") {
  CHECK(rows_as_svg("A CPU", {}).ends_with("</svg>\n"));
  Row one = times(1e-6, {});
  one.panel = "H 128";
  one.x = 1;
  Row none = times({}, {});
  none.panel = "H 512";
  none.x = 1;
  const std::string svg = rows_as_svg("A CPU", {one, none});
  CHECK(count(svg, "<circle") == 1);
  CHECK(count(svg, "<g ") == 1);
  CHECK(count(svg, "nan") + count(svg, "inf") == 0);
}
