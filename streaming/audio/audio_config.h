// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace millrace {

/// libsamplerate's sinc converters, from the cheapest to the best.
enum class ResampleQuality : std::uint8_t { fastest, medium, best };

/// The making of one input of a program from audio: row k holds `context + window` samples at `rate`, of which the last `window` begin at
/// sample k·hop. Before the first sample and after the last there are zeros.
struct AudioConfig {
  std::string input;  ///< the program's input; rows are f32[context + window]
  int rate = 16000;   ///< Hz that the program wants, AudioFormat::min_rate…max_rate
  int window = 512;   ///< 1…1,048,576 new samples
  int hop = 512;      ///< 1…1,048,576 samples from one row to the next
  int context = 0;    ///< 0…1,048,576 samples of the past before them
  ResampleQuality quality = ResampleQuality::medium;

  int row_samples() const { return context + window; }
  double step_seconds() const { return static_cast<double>(hop) / rate; }
  friend bool operator==(const AudioConfig&, const AudioConfig&) = default;
};

/// A label that one value of an output turns on and off, with hysteresis. Times are multiples of a step in effect: a decision is made once
/// a step.
struct LabelConfig {
  std::string name;
  std::string output;
  std::size_t index = 0;  ///< which element of the output's row
  double enter = 0.5;     ///< on from a step whose value is at least this
  double leave = 0.35;    ///< off from a step whose value is below this, if `enter` is not reached again within `min_off`; at most `enter`
  double min_on = 0;      ///< seconds: shorter segments are dropped
  double min_off = 0;     ///< seconds: shorter gaps are bridged
  double pad = 0;         ///< seconds added at both sides; at most `min_off`
  friend bool operator==(const LabelConfig&, const LabelConfig&) = default;
};

}  // namespace millrace
