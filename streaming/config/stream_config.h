// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <millrace/streaming/audio/audio_config.h>

namespace millrace {

/// The learning of a model's sessions.
struct LearnConfig {
  enum class Optimizer : std::uint8_t { sgd, adam, adamw };
  std::string losses;
  std::int64_t k1 = 16;
  std::int64_t k2 = 16;
  Optimizer optimizer = Optimizer::adam;
  double learning_rate = 0.001;
  double clip_norm = 0;
  std::size_t sessions = 16;
  std::vector<std::pair<std::string, std::string>> states{};  ///< (input, output), by input name
};

/// The settings of a TOML file beside a model, about feeding it live.
///
///     [audio]                 # optional: this input is fed with audio
///     input = "input"
///     rate = 16000            # Hz
///     window = 512            # new samples of a row
///     hop = 512               # samples from one row to the next; default: window
///     context = 64            # samples of the past before them; default: 0
///     resampler = "medium"    # "fastest", "medium" or "best"; default: "medium"
///
///     [state]                 # optional: a state input and the output that follows it
///     h = "hn"
///
///     [[label]]               # any number
///     name = "speech"
///     output = "speech_probs"
///     index = 0               # element of the output's row; default: 0
///     enter = 0.5
///     leave = 0.35            # default: enter
///     min_on_ms = 250         # default: 0, as below
///     min_off_ms = 100
///     pad_ms = 30
///
///     [learn]                 # optional: each session learns from its own rows (live/live_learner.h)
///     losses = "losses"       # output: a floating loss for each row
///     k1 = 16                 # rows between two updates; default: 16
///     k2 = 16                 # rows that a gradient reaches back, a multiple of k1; default: k1
///     optimizer = "adam"      # "sgd", "adam" or "adamw"; default: "adam"
///     learning_rate = 0.001
///     clip_norm = 1           # of an update's gradients; default: 0, none
///     sessions = 16           # that may live at a time, as each has weights of its own; default: 16
///     [learn.state]           # an input that is the state in front of the first row, and the output that is the state behind the last
///     h = "h_next"
struct StreamConfig {
  std::optional<AudioConfig> audio;
  std::vector<std::pair<std::string, std::string>> states;  ///< (input, output), by input name
  std::vector<LabelConfig> labels;
  std::optional<LearnConfig> learn{};
};

/// Reads the text. ParseError, one line `NAME:LINE: …` that says what was expected and found: bad TOML, text that is no
/// UTF-8, a letter that is not ASCII outside comments and strings in double quotes, an unknown key, a wrong type, a number out of range, labels
/// without [audio]. UnsupportedError without the part toml.
StreamConfig parse_stream_config(std::string_view text, const std::string& name);
/// Reads a regular file of at most 1 MiB. IoError when it cannot be read.
StreamConfig read_stream_config(const std::string& path);

}  // namespace millrace
