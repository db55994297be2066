// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/config/stream_config.h>

#include <millrace/runtime/files/with_toml/toml_table.h>

#include <cstdint>

#include <millrace/streaming/protocol/audio_format.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

using Table = internal::TomlTable;

constexpr std::int64_t longest = 1 << 20;  // samples
constexpr double most_ms = 1e6;

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

LearnConfig learn_of(const Table& table, const std::string& name) {
  constexpr std::int64_t most_rows = 1 << 20, most_sessions = 1 << 16;
  table.only({"losses", "k1", "k2", "optimizer", "learning_rate", "clip_norm", "sessions", "state"});
  LearnConfig learn;
  learn.losses = table.text("losses");
  if (table.has("k1")) learn.k1 = table.integer("k1", 1, most_rows);
  learn.k2 = table.has("k2") ? table.integer("k2", 1, most_rows) : learn.k1;
  if (learn.k2 % learn.k1 != 0)
    table.fail(table.required("k2"),
               "k2: expected a multiple of k1, found " + std::to_string(learn.k2) + " and " + std::to_string(learn.k1));
  if (table.has("optimizer")) learn.optimizer = static_cast<LearnConfig::Optimizer>(table.one_of("optimizer", {"sgd", "adam", "adamw"}));
  learn.learning_rate = table.number("learning_rate", 0, 1e6);
  if (table.has("clip_norm")) learn.clip_norm = table.number("clip_norm", 0, 1e30);
  if (table.has("sessions")) learn.sessions = static_cast<std::size_t>(table.integer("sessions", 1, most_sessions));
  if (!table.has("state")) return learn;
  const Table states(table.table_at("state"), name, "[learn.state]");
  for (const auto& [input, output] : states.table()) learn.states.emplace_back(input.str(), states.text(input.str()));
  return learn;
}

StreamConfig config_of(const Table& root, const std::string& name) {
  root.only({"audio", "state", "label", "learn"});
  StreamConfig config;
  if (root.has("audio")) config.audio = audio_of(Table(root.table_at("audio"), name, "[audio]"));
  if (root.has("state")) {
    const Table states(root.table_at("state"), name, "[state]");
    for (const auto& [input, output] : states.table()) config.states.emplace_back(input.str(), states.text(input.str()));
  }
  if (root.has("learn")) config.learn = learn_of(Table(root.table_at("learn"), name, "[learn]"), name);
  if (!root.has("label")) return config;
  if (!config.audio) root.fail(root.required("label"), "label: expected [audio] with it, found none: labels are timed by its hop");
  root.each_table("label", [&](const Table& label) { config.labels.push_back(label_of(label)); });
  return config;
}

}  // namespace

StreamConfig parse_stream_config(std::string_view text, const std::string& name) {
  return internal::read_toml(text, name, [&](const Table& root) { return config_of(root, name); });
}

}  // namespace millrace
