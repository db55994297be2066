// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

namespace millrace::demo {

/// The state of one voice as a listener hears it.
struct Voice {
  std::string name;
  std::deque<float> values{};  ///< of the last steps, 0 to 1; the newest last
};

/// Voices as lines of text, each as many columns wide as `width`: a name and a row of blocks, the newest value at the right. Where there are more voices than
/// `height`, several stand beside each other; those for which there is no room are left out. Never more than `height` lines.
std::string draw_voices(const std::vector<Voice>& voices, std::size_t width, std::size_t height);

/// A block for a value: a space below 1/16, then eight heights. A NaN is '?'.
std::string block_of(float value);

}  // namespace millrace::demo
