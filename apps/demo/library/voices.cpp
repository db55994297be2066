// SPDX-License-Identifier: Apache-2.0
#include "voices.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace millrace::demo {
namespace {

constexpr std::size_t least_column = 12, longest_name = 20;

/// ASCII alone, so that a character is a column.
std::string shown_name(const std::string& name, std::size_t width) {
  std::string text = name.size() > width ? name.substr(name.size() - width) : name;
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  text.resize(width, ' ');
  return text;
}

std::string draw_voice(const Voice& voice, std::size_t width) {
  const std::size_t name = std::min(longest_name, width / 3), blocks = width - name - 1;
  std::string text = shown_name(voice.name, name) + " ";
  const std::size_t shown = std::min(blocks, voice.values.size());
  text.append(blocks - shown, ' ');
  for (std::size_t i = voice.values.size() - shown; i < voice.values.size(); ++i) text += block_of(voice.values[i]);
  return text;
}

}  // namespace

std::string block_of(float value) {
  if (std::isnan(value)) return "?";
  constexpr std::array<const char*, 9> blocks{" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const float height = std::round(std::clamp(value, 0.0f, 1.0f) * 8);
  return blocks.at(static_cast<std::size_t>(height));
}

std::string draw_voices(const std::vector<Voice>& voices, std::size_t width, std::size_t height) {
  if (voices.empty() || height == 0 || width < least_column) return {};
  const std::size_t most_columns = std::max<std::size_t>(1, (width + 2) / (least_column + 2));
  const std::size_t columns = std::min(most_columns, (voices.size() + height - 1) / height);
  const std::size_t lines = std::min(height, (voices.size() + columns - 1) / columns);
  const std::size_t column = (width - 2 * (columns - 1)) / columns;
  std::string text;
  for (std::size_t line = 0; line < lines; ++line) {
    for (std::size_t i = 0; i < columns && i * lines + line < voices.size(); ++i)
      text += (i == 0 ? "" : "  ") + draw_voice(voices[i * lines + line], column);
    text += "\n";
  }
  return text;
}

}  // namespace millrace::demo
