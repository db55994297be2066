// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/metrics.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <fmt/format.h>

#include <millrace/runtime/files/utf8.h>
#include <millrace/runtime/training/internal/floats.h>

namespace millrace::training {
namespace {

/// JSON has no text for infinity and NaN.
std::string json_number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

std::string score_fields(const std::string& prefix, const Score& score) {
  std::string text = fmt::format(", \"{}loss\": {}", prefix, json_number(score.loss));
  if (score.accuracy) text += fmt::format(", \"{}accuracy\": {}", prefix, json_number(*score.accuracy));
  return text;
}

constexpr double absent = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t columns = 9;

using Read = std::function<std::optional<double>(const EpochMetrics&)>;

/// A named curve.
struct Curve {
  const char* name;
  const char* colour;
  Read read;
};

struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
  void add(double value) {
    if (std::isfinite(value)) least = std::min(least, value), most = std::max(most, value);
  }
  /// Makes a range of one number wide enough to be divided, within `whole`.
  void widen(const Range& whole) {
    if (!(least <= most)) least = 0, most = 1;
    const double size = std::max(std::abs(least), std::abs(most));
    if (most / 2 - least / 2 >= 1e-12 * std::max(1.0, size)) return;
    const double margin = std::max(0.5, size * 1e-6);
    least = std::max(whole.least, least - margin), most = std::min(whole.most, most + margin);
  }
  /// 0 at the least, 1 at the most. Halves keep the width of the largest numbers finite.
  double part(double value) const { return (value / 2 - least / 2) / (most / 2 - least / 2); }
  double at(double part) const { return least * (1 - part) + most * part; }
};

constexpr double greatest = std::numeric_limits<double>::max();

struct Panel {
  const char* title;
  std::vector<Curve> curves;
  Range whole = {-greatest, greatest};  ///< the numbers that there may be
};

std::vector<Panel> panels_of(const std::vector<EpochMetrics>& epochs) {
  const auto accuracy = [](const Score& score) { return score.accuracy; };
  std::vector<Panel> panels{
      {"loss",
       {{"training", "#2874a6", [](const EpochMetrics& e) { return std::optional(e.train.loss); }},
        {"validation", "#c0392b", [](const EpochMetrics& e) { return e.validation ? std::optional(e.validation->loss) : std::nullopt; }}}}};
  if (!epochs.empty() && epochs[0].train.accuracy)
    panels.push_back(
        {"accuracy",
         {{"training", "#2874a6", [=](const EpochMetrics& e) { return accuracy(e.train); }},
          {"validation", "#c0392b", [=](const EpochMetrics& e) { return e.validation ? accuracy(*e.validation) : std::nullopt; }}},
         {0, 1}});
  return panels;
}

constexpr double width = 460, height = 300, left = 58, right = 16, top = 40, bottom = 36;

std::string drawing_of(const Panel& panel, const std::vector<EpochMetrics>& epochs, double x) {
  Range values;
  for (const Curve& curve : panel.curves)
    for (const EpochMetrics& epoch : epochs)
      if (const auto value = curve.read(epoch)) values.add(*value);
  values.widen(panel.whole);
  const double last = epochs.empty() ? 2.0 : static_cast<double>(std::max<std::int64_t>(2, epochs.back().epoch));
  const auto at_x = [&](double epoch) { return left + (epoch - 1) / (last - 1) * (width - left - right); };
  const auto at_y = [&](double value) { return height - bottom - values.part(value) * (height - top - bottom); };
  std::string text = fmt::format("<g transform=\"translate({:.0f} 0)\">\n<text x=\"{:.0f}\" y=\"28\" font-weight=\"bold\">{}</text>\n", x,
                                 left, panel.title);
  constexpr int marks = 4;
  for (int i = 0; i <= marks; ++i) {
    const double value = values.at(static_cast<double>(i) / marks);
    text += fmt::format("<line x1=\"{0:.0f}\" x2=\"{1:.0f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>\n", left, width - right,
                        at_y(value));
    text += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.3g}</text>\n", left - 6, at_y(value) + 4, value);
    const double epoch = std::round(1 + (last - 1) * i / marks);
    text += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{:.0f}</text>\n", at_x(epoch), height - bottom + 16, epoch);
  }
  double legend = left + 70;
  for (const Curve& curve : panel.curves) {
    std::string points, end;
    for (const EpochMetrics& epoch : epochs)
      if (const auto value = curve.read(epoch); value && std::isfinite(*value)) {
        const double x_of = at_x(static_cast<double>(epoch.epoch)), y_of = at_y(*value);
        points += fmt::format("{:.1f},{:.1f} ", x_of, y_of);
        end = fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>\n", x_of, y_of, curve.colour);
      }
    if (points.empty()) continue;
    text += end;  // a line of one point is not drawn
    text += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n", points, curve.colour);
    text += fmt::format("<text x=\"{:.0f}\" y=\"28\" fill=\"{}\">{}</text>\n", legend, curve.colour, curve.name);
    legend += 70;
  }
  return text + "</g>\n";
}

/// The text as XML holds it. XML has no control characters; bytes that are no UTF-8 and control characters become question marks.
std::string escaped(const std::string& text) {
  std::string made;
  const bool utf8 = is_utf8(text);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool shown = byte >= 0x20 && byte != 0x7f && (utf8 || byte < 0x80);
    made += !shown ? "?" : c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return made;
}

}  // namespace

std::int64_t count_right(const Tensor& scores, const Tensor& targets) {
  if (scores.rank() != 2 || targets.rank() != 1 || scores.dim(0) != targets.dim(0))
    throw ShapeError("count_right: expected scores [N, K] and targets [N], found " + scores.to_string() + " and " + targets.to_string());
  const std::vector<std::int64_t> wanted = targets.to_vector<std::int64_t>();
  const std::int64_t width_of = scores.dim(1);
  std::int64_t right_ones = 0;
  internal::visit_floats("scores", scores.dtype(), [&]<class T>(std::type_identity<T>) {
    const std::vector<T> all = scores.to_vector<T>();
    using Compute = internal::ComputeType<T>;
    for (std::size_t row = 0; row < wanted.size(); ++row) {
      const T* from = all.data() + static_cast<std::int64_t>(row) * width_of;
      const T* most = std::max_element(from, from + width_of, [](T a, T b) { return static_cast<Compute>(a) < static_cast<Compute>(b); });
      if (most - from == wanted[row]) ++right_ones;
    }
  });
  return right_ones;
}

std::string json_line(const EpochMetrics& metrics) {
  std::string text = fmt::format("{{\"epoch\": {}, \"step\": {}", metrics.epoch, metrics.step) + score_fields("", metrics.train);
  if (metrics.validation) text += score_fields("validation_", *metrics.validation);
  return text + fmt::format(", \"learning_rate\": {}, \"gradient_norm\": {}}}", json_number(metrics.learning_rate),
                            json_number(metrics.gradient_norm));
}

std::string json_line(const FinalMetrics& metrics) {
  std::string text =
      fmt::format("{{\"final\": true, \"epoch\": {}, \"step\": {}, \"best_epoch\": {}", metrics.epoch, metrics.step, metrics.best_epoch);
  if (metrics.validation) text += score_fields("validation_", *metrics.validation);
  if (metrics.test) text += score_fields("test_", *metrics.test);
  if (metrics.test_tokens)
    text += fmt::format(", \"test_token_error_greedy\": {}, \"test_token_error_beam\": {}", json_number(metrics.test_tokens->greedy),
                        json_number(metrics.test_tokens->beam));
  return text + "}";
}

std::string final_line(const FinalMetrics& metrics) {
  const std::optional<Score>& score = metrics.test ? metrics.test : metrics.validation;
  const char* of = metrics.test ? "test" : "validation";
  std::string text = "final:";
  if (!score) return text + fmt::format(" step={}", metrics.step);
  if (score->accuracy) text += fmt::format(" {}_accuracy={:.4f}", of, *score->accuracy);
  text += fmt::format(" {}_loss={:.4f}", of, score->loss);
  if (metrics.test_tokens)
    text +=
        fmt::format(" test_token_error_greedy={:.4f} test_token_error_beam={:.4f}", metrics.test_tokens->greedy, metrics.test_tokens->beam);
  return text;
}

Tensor to_tensor(const std::vector<EpochMetrics>& epochs) {
  std::vector<double> values;
  for (const EpochMetrics& e : epochs) {
    const Score validation = e.validation.value_or(Score{absent, std::nullopt});
    values.insert(values.end(),
                  {static_cast<double>(e.epoch), static_cast<double>(e.step), e.train.loss, e.train.accuracy.value_or(absent),
                   e.validation ? 1.0 : 0.0, validation.loss, validation.accuracy.value_or(absent), e.learning_rate, e.gradient_norm});
  }
  return Tensor::from(values, {static_cast<std::int64_t>(epochs.size()), columns});
}

std::vector<EpochMetrics> metrics_of(const Tensor& tensor) {
  if (tensor.rank() != 2 || tensor.dim(1) != columns) throw ShapeError("metrics: expected f64 [epochs, 9], found " + tensor.to_string());
  const std::vector<double> values = tensor.to_vector<double>();
  const auto perhaps = [](double value) { return std::isnan(value) ? std::nullopt : std::optional(value); };
  std::vector<EpochMetrics> epochs;
  for (std::size_t at = 0; at < values.size(); at += columns) {
    EpochMetrics e;
    e.epoch = static_cast<std::int64_t>(values[at]);
    e.step = static_cast<std::int64_t>(values[at + 1]);
    e.train = {values[at + 2], perhaps(values[at + 3])};
    if (values[at + 4] != 0) e.validation = Score{values[at + 5], perhaps(values[at + 6])};
    e.learning_rate = values[at + 7];
    e.gradient_norm = values[at + 8];
    epochs.push_back(e);
  }
  return epochs;
}

std::string curves_as_svg(const std::string& title, const std::vector<EpochMetrics>& epochs) {
  const std::vector<Panel> panels = panels_of(epochs);
  std::string text =
      fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" ",
                  static_cast<double>(panels.size()) * width, height);
  text += "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  text += fmt::format("<text x=\"10\" y=\"12\">{} by epoch</text>\n", escaped(title));
  for (std::size_t i = 0; i < panels.size(); ++i) text += drawing_of(panels[i], epochs, static_cast<double>(i) * width);
  return text + "</svg>\n";
}

std::string curve_as_text(const std::vector<EpochMetrics>& epochs, int wide, int high) {
  const std::vector<Panel> panels = panels_of(epochs);
  const Panel& panel = panels.back();
  const bool validated = !epochs.empty() && epochs[0].validation.has_value();
  const Read& read = panel.curves[validated ? 1 : 0].read;
  Range range;
  for (const EpochMetrics& epoch : epochs)
    if (const auto value = read(epoch)) range.add(*value);
  range.widen(panel.whole);
  const int count = std::min<int>(std::max(1, wide - 10), static_cast<int>(epochs.size()));
  std::vector<std::string> lines(static_cast<std::size_t>(std::max(2, high)), std::string(static_cast<std::size_t>(count), ' '));
  for (int column = 0; column < count; ++column) {
    const auto index = count == 1 ? 0 : static_cast<std::size_t>(column) * (epochs.size() - 1) / static_cast<std::size_t>(count - 1);
    const auto value = read(epochs[index]);
    if (!value || !std::isfinite(*value)) continue;
    const double part = 1 - range.part(*value);
    lines[static_cast<std::size_t>(std::lround(part * static_cast<double>(lines.size() - 1)))][static_cast<std::size_t>(column)] = '*';
  }
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string label = i == 0                  ? fmt::format("{:8.3f}", range.most)
                              : i + 1 == lines.size() ? fmt::format("{:8.3f}", range.least)
                                                      : std::string(8, ' ');
    text += label + " |" + lines[i] + "\n";
  }
  return text + fmt::format("{:>8} +{}\n{:>9} {} of {} epochs\n", "", std::string(static_cast<std::size_t>(count), '-'), "",
                            validated ? fmt::format("validation {}", panel.title) : std::string(panel.title), epochs.size());
}

}  // namespace millrace::training
