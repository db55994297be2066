// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/config/stream_config.h>

// Header-only toml++ asserts on text such as `[!` just before it reports it as the error that it is; text is input and must not abort.
#define TOML_ASSERT(condition) static_assert(true)
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <sstream>

#include <millrace/streaming/protocol/audio_format.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

/// One table of the file; every error is "NAME:LINE: …".
class Table {
 public:
  Table(const toml::table& table, const std::string& name, std::string where) : table_(table), name_(name), where_(std::move(where)) {}

  [[noreturn]] void fail(const toml::node& at, const std::string& what) const {
    throw ParseError(name_ + ":" + std::to_string(at.source().begin.line) + ": " + where_ + ": " + what);
  }
  void only(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : table_) {
      if (std::find(known.begin(), known.end(), key.str()) != known.end()) continue;
      std::string names;
      for (std::string_view name : known) names += (names.empty() ? "" : ", ") + std::string(name);
      fail(value, "expected the keys " + names + ", found '" + std::string(key.str()) + "'");
    }
  }
  std::string text(std::string_view key) const {
    const toml::node& node = required(key);
    if (!node.is_string() || node.as_string()->get().empty()) fail(node, std::string(key) + ": expected a text, found " + kind(node));
    return node.as_string()->get();
  }
  int integer(std::string_view key, std::int64_t least, std::int64_t most) const {
    const toml::node& node = required(key);
    const std::string expected = std::string(key) + ": expected an integer from " + std::to_string(least) + " to " + std::to_string(most);
    if (!node.is_integer()) fail(node, expected + ", found " + kind(node));
    const std::int64_t value = node.as_integer()->get();
    if (value < least || value > most) fail(node, expected + ", found " + std::to_string(value));
    return static_cast<int>(value);
  }
  double number(std::string_view key, double least, double most) const {
    const toml::node& node = required(key);
    const auto value = node.value<double>();
    std::ostringstream expected;
    expected << key << ": expected a number from " << least << " to " << most << ", found ";
    if (!node.is_number() || !value) fail(node, expected.str() + kind(node));
    expected << *value;
    if (!(*value >= least && *value <= most)) fail(node, expected.str());
    return *value;
  }
  bool has(std::string_view key) const { return table_.contains(key); }
  const toml::node& required(std::string_view key) const {
    const toml::node* node = table_.get(key);
    if (!node) fail(table_, "expected the key '" + std::string(key) + "', found none");
    return *node;
  }
  const toml::table& table() const noexcept { return table_; }

  static std::string kind(const toml::node& node) {
    std::ostringstream text;
    text << node.type();
    return text.str();
  }

 private:
  const toml::table& table_;
  const std::string& name_;
  std::string where_;
};

constexpr std::int64_t longest = 1 << 20;  // samples
constexpr double most_ms = 1e6;
constexpr std::size_t longest_line = 1000;

AudioConfig audio_of(const Table& table) {
  table.only({"input", "rate", "window", "hop", "context", "resampler"});
  AudioConfig audio;
  audio.input = table.text("input");
  audio.rate = table.integer("rate", AudioFormat::min_rate, AudioFormat::max_rate);
  audio.window = table.integer("window", 1, longest);
  audio.hop = table.has("hop") ? table.integer("hop", 1, longest) : audio.window;
  audio.context = table.has("context") ? table.integer("context", 0, longest) : 0;
  if (!table.has("resampler")) return audio;
  const std::string quality = table.text("resampler");
  if (quality == "fastest")
    audio.quality = ResampleQuality::fastest;
  else if (quality == "medium")
    audio.quality = ResampleQuality::medium;
  else if (quality == "best")
    audio.quality = ResampleQuality::best;
  else
    table.fail(table.required("resampler"), "resampler: expected fastest, medium or best, found '" + quality + "'");
  return audio;
}

double seconds_of(const Table& table, std::string_view key) { return table.has(key) ? table.number(key, 0, most_ms) / 1000 : 0; }

LabelConfig label_of(const Table& table) {
  table.only({"name", "output", "index", "enter", "leave", "min_on_ms", "min_off_ms", "pad_ms"});
  LabelConfig label;
  label.name = table.text("name");
  label.output = table.text("output");
  label.index = table.has("index") ? static_cast<std::size_t>(table.integer("index", 0, longest)) : 0;
  label.enter = table.number("enter", -1e30, 1e30);
  label.leave = table.has("leave") ? table.number("leave", -1e30, 1e30) : label.enter;
  label.min_on = seconds_of(table, "min_on_ms");
  label.min_off = seconds_of(table, "min_off_ms");
  label.pad = seconds_of(table, "pad_ms");
  if (label.leave > label.enter) table.fail(table.required("leave"), "leave: expected at most enter");
  if (label.pad > label.min_off) table.fail(table.required("pad_ms"), "pad_ms: expected at most min_off_ms");
  return label;
}

const toml::table& table_at(const Table& root, std::string_view key) {
  const toml::node& node = root.required(key);
  if (!node.is_table()) root.fail(node, std::string(key) + ": expected a table, found " + Table::kind(node));
  return *node.as_table();
}

void read_labels(const Table& root, const std::string& name, std::vector<LabelConfig>& labels) {
  const toml::node& node = root.required("label");
  if (!node.is_array()) root.fail(node, "label: expected [[label]] tables, found " + Table::kind(node));
  for (const toml::node& entry : *node.as_array()) {
    if (!entry.is_table()) root.fail(entry, "label: expected [[label]] tables, found " + Table::kind(entry));
    labels.push_back(label_of(Table(*entry.as_table(), name, "[[label]]")));
  }
}

StreamConfig config_of(const toml::table& file, const std::string& name) {
  const Table root(file, name, "file");
  root.only({"audio", "state", "label"});
  StreamConfig config;
  if (root.has("audio")) config.audio = audio_of(Table(table_at(root, "audio"), name, "[audio]"));
  if (root.has("state")) {
    const Table states(table_at(root, "state"), name, "[state]");
    for (const auto& [input, output] : states.table()) config.states.emplace_back(input.str(), states.text(input.str()));
  }
  if (!root.has("label")) return config;
  if (!config.audio) root.fail(root.required("label"), "label: expected [audio] with it, found none: labels are timed by its hop");
  read_labels(root, name, config.labels);
  return config;
}

// toml++ 3.3 runs into undefined behaviour on some letters outside strings, so what is not ASCII is taken in lines of comment alone; and it
// recurses once for each dot of a key, so lines are bounded.
void check_lines(std::string_view text, const std::string& name) {
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::string_view row = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), row.size() + 1));
    const auto first = row.find_first_not_of(" \t");
    if (first != row.npos && row[first] == '#') continue;
    if (row.size() > longest_line)
      throw ParseError(name + ":" + std::to_string(line) + ": expected a line of at most " + std::to_string(longest_line) +
                       " bytes, found " + std::to_string(row.size()));
    if (std::any_of(row.begin(), row.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
      throw ParseError(name + ":" + std::to_string(line) +
                       ": expected ASCII outside lines of comment (a string can say \\uXXXX), found another letter");
  }
}

}  // namespace

StreamConfig parse_stream_config(std::string_view text, const std::string& name) {
  check_lines(text, name);
  try {
    const toml::table file = toml::parse(text, name);
    return config_of(file, name);
  } catch (const toml::parse_error& error) {
    std::string what(error.description());
    std::replace(what.begin(), what.end(), '\n', ' ');
    throw ParseError(name + ":" + std::to_string(error.source().begin.line) + ": expected TOML: " + what);
  }
}

}  // namespace millrace
