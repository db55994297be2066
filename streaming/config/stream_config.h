// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <millrace/streaming/audio/audio_config.h>

namespace millrace {

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
struct StreamConfig {
  std::optional<AudioConfig> audio;
  std::vector<std::pair<std::string, std::string>> states;  ///< (input, output), by input name
  std::vector<LabelConfig> labels;
};

/// Reads the text. ParseError, one line `NAME:LINE: …` that says what was expected and found: bad TOML, a letter that is not ASCII outside
/// lines of comment, an unknown key, a wrong type, a number out of range, labels without [audio]. UnsupportedError without the part toml.
StreamConfig parse_stream_config(std::string_view text, const std::string& name);
/// Reads a regular file of at most 1 MiB. IoError when it cannot be read.
StreamConfig read_stream_config(const std::string& path);

}  // namespace millrace
