// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include <bench/library/report.h>

namespace millrace::bench {
namespace {

using Points = std::map<double, double>;      ///< by x
using Panel = std::map<std::string, Points>;  ///< by who was measured
using Panels = std::vector<std::pair<std::string, Panel>>;

constexpr double width = 420, height = 300, left = 62, right = 16, top = 34, bottom = 44;
constexpr const char* colours[] = {"#c0392b", "#2874a6", "#1e8449", "#b9770e", "#7d3c98", "#566573"};

std::string escaped(const std::string& text) {
  std::string made;
  for (const char c : text) made += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return made;
}

/// Ours is the median of the rows of one x: each was measured beside another peer.
Panels panels_of(const std::vector<Row>& rows) {
  Panels panels;
  std::map<std::pair<std::string, double>, std::vector<double>> ours;
  for (const Row& row : rows) {
    if (row.panel.empty() || !row.ours || *row.ours <= 0 || row.x <= 0) continue;
    auto panel = std::find_if(panels.begin(), panels.end(), [&](const auto& p) { return p.first == row.panel; });
    if (panel == panels.end()) panel = panels.insert(panels.end(), {row.panel, Panel()});
    std::vector<double>& all = ours[{row.panel, row.x}];
    all.insert(std::upper_bound(all.begin(), all.end(), *row.ours), *row.ours);
    panel->second["millrace"][row.x] = all[all.size() / 2];
    if (row.peer && *row.peer > 0) panel->second[row.peer_name][row.x] = *row.peer;
  }
  return panels;
}

/// A logarithmic axis from `least` to `most` over [from, to].
struct Axis {
  double least = 0, most = 0, from = 0, to = 0;
  Axis(double least_of, double most_of, double from_of, double to_of)
      : least(std::log10(least_of)), most(std::log10(most_of)), from(from_of), to(to_of) {
    if (most - least < 1e-9) most = least + 1, least -= 1;
  }
  double at(double value) const { return from + (std::log10(value) - least) / (most - least) * (to - from); }
};

Axis axis_of(const Panel& panel, bool of_x, double from, double to) {
  double least = HUGE_VAL, most = 0;
  for (const auto& [name, points] : panel)
    for (const auto& [x, y] : points) least = std::min(least, of_x ? x : y), most = std::max(most, of_x ? x : y);
  return Axis(of_x ? least : least / 1.3, of_x ? most : most * 1.3, from, to);
}

std::string line_of(const std::string& name, const Points& points, const Axis& x_axis, const Axis& y_axis, std::size_t index) {
  const char* colour = colours[index % std::size(colours)];
  std::string path, dots;
  for (const auto& [x, y] : points) {
    path += fmt::format("{:.1f},{:.1f} ", x_axis.at(x), y_axis.at(y));
    dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x_axis.at(x), y_axis.at(y), colour);
  }
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n{}", path, colour, dots) +
         fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"{}\">{}</text>\n", left + 8, top + 14 + 14 * static_cast<double>(index),
                     colour, escaped(name));
}

std::string ticks_of(const Panel& panel, const Axis& x_axis, const Axis& y_axis) {
  std::string text;
  for (const auto& [x, ignored] : panel.at("millrace"))
    text += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{:g}</text>\n", x_axis.at(x), height - bottom + 16, x);
  for (double decade = std::floor(y_axis.least); decade <= y_axis.most; ++decade)
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double y = digit * std::pow(10, decade);
      if (std::log10(y) < y_axis.least || std::log10(y) > y_axis.most) continue;
      text += fmt::format("<line x1=\"{0:.0f}\" x2=\"{1:.0f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>\n", left, width - right,
                          y_axis.at(y));
      text += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n", left - 6, y_axis.at(y) + 4, y * 1e6);
    }
  return text;
}

std::string drawing_of(const std::string& title, const Panel& panel, double x, double y) {
  const Axis x_axis = axis_of(panel, true, left + 20, width - right - 20), y_axis = axis_of(panel, false, height - bottom, top);
  std::string text = fmt::format("<g transform=\"translate({:.0f} {:.0f})\">\n", x, y);
  text += fmt::format("<text x=\"{:.0f}\" y=\"20\" font-weight=\"bold\">{}</text>\n", left, escaped(title));
  text += ticks_of(panel, x_axis, y_axis);
  text += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#888\"/>\n", left, top,
                      width - left - right, height - top - bottom);
  std::size_t index = 0;
  text += line_of("millrace", panel.at("millrace"), x_axis, y_axis, index++);
  for (const auto& [name, points] : panel)
    if (name != "millrace") text += line_of(name, points, x_axis, y_axis, index++);
  return text + "</g>\n";
}

}  // namespace

std::string rows_as_svg(const std::string& device, const std::vector<Row>& rows) {
  const Panels panels = panels_of(rows);
  const std::size_t columns = std::max<std::size_t>(1, std::min<std::size_t>(3, panels.size()));
  const double lines = std::ceil(static_cast<double>(panels.size()) / static_cast<double>(columns));
  std::string text =
      fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" ",
                  static_cast<double>(columns) * width, lines * height + 30);
  text += "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  text += fmt::format("<text x=\"10\" y=\"18\">microseconds, less is better; {}</text>\n", escaped(device));
  for (std::size_t i = 0; i < panels.size(); ++i)
    text += drawing_of(panels[i].first, panels[i].second, static_cast<double>(i % columns) * width,
                       30 + static_cast<double>(i / columns) * height);
  return text + "</svg>\n";
}

}  // namespace millrace::bench
