// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace millrace::demo {

/// The canonical listing with seeded weights: 8 live sessions over a local socket, their rows cut anywhere, against one run of the whole.
/// Needs no file. 0: all bits equal.
int offline();

/// LAC-small of Debian's python3-jieba: two sentences tagged, then dialogues live, sentence by sentence, to a `millrace serve` of its forward
/// half, against one run over LoD of two levels. Says so and does nothing where the package is not installed. 0: all bits equal.
int dialogue(const std::string& bin);

/// The parts of the demo of speech.
struct Speech {
  std::string bin;     ///< where `millrace` is
  std::string model;   ///< a voice activity detector
  std::string config;  ///< its TOML
  std::string sounds;  ///< the folder of Asterisk's sounds; English ones are in en*/
  bool draws = false;  ///< a drawing of the voices on the terminal, in place of a line for each prompt at the end
};

/// Streams the 64 longest English prompts at once to a server in another process, unpaced for the throughput and then in real time for the
/// lag, and compares what came back with `millrace run` on each file. 0: all bits equal.
int speech(const Speech& given);

/// A model that `millrace train` made from a .ts file, and sequences to try it on.
struct Trained {
  std::string bin;        ///< where `millrace` is
  std::string folder;     ///< with model.mr and live.mr
  std::string sequences;  ///< a .ts file
};

/// Sends all sequences at once to a server of live.mr, and compares the last reply of each with what model.mr gives for the whole. 0: all
/// bits equal.
int trained(const Trained& given);

}  // namespace millrace::demo
